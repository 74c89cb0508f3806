#include "runtime.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "backend.h"
#include "reduction.h"

namespace torch_mpi {
namespace {

constexpr auto kNoticeDelivery = std::chrono::seconds(1);
constexpr auto kDrain = std::chrono::seconds(5);
constexpr auto kLastWords = std::chrono::seconds(2);
constexpr auto kOthersEnd = std::chrono::seconds(10);
constexpr auto kListen = std::chrono::milliseconds(1);
constexpr size_t kNoticeLength = 512;

// What this process wrote and nobody has read yet, when that is a pipe.
int unread(int stream) {
  struct stat status;
  int bytes = 0;
  if (fstat(stream, &status) != 0 || !S_ISFIFO(status.st_mode) || ioctl(stream, FIONREAD, &bytes) != 0)
    return 0;
  return bytes;
}

// MPICH's mpirun drops what it has not read when a rank ends all, the reason among it. So it gets a moment.
void end_all(int rank, const std::string& why, int status = 1) {
  std::fprintf(stderr, "torch_mpi: rank %d %s, so all ranks are ended\n", rank, why.c_str());
  std::fflush(nullptr);
  const auto deadline = Clock::now() + kLastWords;
  while (unread(STDOUT_FILENO) + unread(STDERR_FILENO) > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(kListen);
  MPI_Abort(MPI_COMM_WORLD, status);
}

}  // namespace

std::string in_seconds(Milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000, " s");
}

std::exception_ptr error_of(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    return c10::str("error ", code);
  return std::string(text, static_cast<size_t>(length));
}

void check_mpi(int code, const char* what) {
  if (C10_UNLIKELY(code != MPI_SUCCESS))
    C10_THROW_ERROR(DistBackendError, c10::str("torch_mpi: ", what, ": ", mpi_error_text(code)));
}

// ------------------------------------------------------------------------------------ a group that has failed

std::string Communicator::reason() {
  std::lock_guard<std::mutex> lock(reason_mutex_);
  return reason_;
}

void Communicator::throw_if_failed() {
  if (C10_UNLIKELY(failed()))
    C10_THROW_ERROR(DistBackendError, c10::str("torch_mpi: this process group has failed before: ", reason()));
}

void Communicator::mark_failed(const std::string& reason) {
  std::lock_guard<std::mutex> lock(reason_mutex_);
  if (failed())
    return;
  reason_ = reason;
  failed_.store(true, std::memory_order_release);
}

void Communicator::fail(const std::string& reason) {
  if (failed() || !Runtime::get().usable())
    return;
  mark_failed(reason);
  // Sent without waiting for long; memory and requests of what could not be delivered stay with MPI.
  auto* text = new std::vector<char>(kNoticeLength, '\0');
  std::snprintf(text->data(), kNoticeLength, "rank %d: %s", rank_, reason.c_str());
  std::vector<MPI_Request> requests(static_cast<size_t>(size_), MPI_REQUEST_NULL);
  const auto deadline = Clock::now() + kNoticeDelivery;
  int delivered = 0;
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    for (int other = 0; other < size_; ++other)
      if (other != rank_)
        MPI_Isend(text->data(), kNoticeLength, MPI_CHAR, other, notice_tag(), comm_, &requests[other]);
  }
  while (!delivered && Clock::now() < deadline) {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    if (MPI_Testall(size_, requests.data(), &delivered, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
      break;
    sched_yield();
  }
  if (delivered)
    delete text;
}

void Communicator::look_for_notice() {
  if (failed())
    return;
  std::vector<char> text(kNoticeLength + 1, '\0');
  int found = 0;
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, notice_tag(), comm_, &found, &status) != MPI_SUCCESS || !found)
      return;
    MPI_Recv(text.data(), kNoticeLength, MPI_CHAR, status.MPI_SOURCE, notice_tag(), comm_, MPI_STATUS_IGNORE);
  }
  mark_failed(text.data());
}

void MPIBackend::abort() {
  communicator_->fail("the process group was aborted");
}

// ---------------------------------------------------------------------------------- an operation that is given up

// A receive can be taken back, and the group stays usable; a collective cannot.
bool MPIWork::cancel_receive() {
  if (!receive_)
    return false;
  const auto deadline = Clock::now() + kNoticeDelivery;
  bool asked = false;
  while (Clock::now() < deadline) {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    for (size_t i = complete_requests_; !asked && i < requests_.size(); ++i)
      MPI_Cancel(&requests_[i]);
    asked = true;
    if (test_requests())
      return mpi_error_ == MPI_SUCCESS;
  }
  return false;
}

void MPIWork::give_up(const std::string& reason) {
  if (!Runtime::get().usable())
    return;
  WorkPointer held;
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    if (state_.load(std::memory_order_acquire) != pending)
      return;
    state_.store(completing, std::memory_order_release);
    held = Runtime::get().remove(*this);
  }
  const auto message = c10::str(description(), " of rank ", rank_, ": ", reason);
  const bool at_an_end = cancel_receive();
  if (at_an_end && !cancelled_)
    return end(nullptr);  // it arrived meanwhile
  if (!at_an_end) {
    communicator_->fail(message);
    Runtime::get().abandon(held);
  }
  end(error_of("torch_mpi: " + message));
}

void MPIWork::abort() {
  give_up("aborted");
}

void Runtime::abandon(const WorkPointer& work) {
  std::lock_guard<std::mutex> lock(mutex);
  abandoned_.push_back(work);
}

// Gives up operations that are late, and those of a group in which another rank told of a failure.
void Runtime::look_after() {
  std::vector<WorkPointer> works;
  {
    std::lock_guard<std::mutex> lock(mutex);
    works = under_way_;
  }
  const auto now = Clock::now();
  Communicator* last = nullptr;
  for (auto& work : works) {
    auto& communicator = *work->communicator_;
    if (&communicator != last)
      communicator.look_for_notice();
    last = &communicator;
    if (communicator.failed())
      work->give_up("the process group failed: " + communicator.reason());
    else if (now >= work->deadline_)
      work->give_up(c10::str("Timed out after ", in_seconds(work->timeout_)));
  }
}

// MPI may hold the memory of what was posted before the error, and the other ranks wait for all of it.
void Runtime::posting_failed(const WorkPointer& work, std::exception_ptr error) {
  for (const auto request : work->requests_)
    if (request != MPI_REQUEST_NULL) {
      abandon(work);
      break;
    }
  if (!work->is_message())
    work->communicator_->fail(c10::str(work->description(), " of rank ", work->rank_, " could not be started"));
  std::rethrow_exception(error);
}

void Runtime::await_all(std::vector<MPI_Request>& requests, Clock::time_point deadline) {
  const auto start = Clock::now();
  int complete = 0;
  while (true) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      check_mpi(
          MPI_Testall(static_cast<int>(requests.size()), requests.data(), &complete, MPI_STATUSES_IGNORE),
          "creating a process group");
    }
    if (complete)
      return;
    if (Clock::now() > deadline)
      C10_THROW_ERROR(DistBackendError, "torch_mpi: timed out creating a process group: not all of its ranks came");
    heed_signals();
    rest(Clock::now() - start);
  }
}

// ------------------------------------------------------------------------------------------ the end of the process

// Operations nobody waited for, a send whose work was dropped for example, get a moment to become complete.
bool Runtime::drain() {
  const auto deadline = Clock::now() + kDrain;
  while (true) {
    std::vector<WorkPointer> works;
    {
      std::lock_guard<std::mutex> lock(mutex);
      works = under_way_;
      if (!abandoned_.empty())
        return false;
    }
    if (works.empty())
      return true;
    if (Clock::now() > deadline)
      return false;
    for (auto& work : works)
      poll(*work);
    sched_yield();
  }
}

// When Python ends. Its exit status is not known yet, and with it whether the other ranks must not wait.
void Runtime::stop(bool failed) {
  if (!usable())
    return;
  if (failed && world_size_ > 1)
    end_all(world_rank_, "ends by an error");
  clean_ = drain();
  {
    std::lock_guard<std::mutex> lock(mutex);
    stopping_ = true;
    wake();
  }
  thread_.join();
}

// Do all ranks come to their end, too? Others are not waited for by one that failed.
bool Runtime::others_end(int status) {
  const auto deadline = Clock::now() + kOthersEnd;
  MPI_Request request = MPI_REQUEST_NULL;
  int complete = 0;
  if (MPI_Ibarrier(meeting_, &request) != MPI_SUCCESS)
    return true;
  while (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && !complete) {
    if (status != 0 && Clock::now() > deadline)
      return false;
    std::this_thread::sleep_for(kListen / 10);
  }
  return true;
}

// MPICH 4.0 with UCX over TCP: a rank that lets go of another waits for its answer, and one that was answered reads no
// more. So a rank that is answered while its neighbour still leaves the barrier makes it wait for ever. The pause makes
// that rare; and nothing is lost any more when a process ends without MPI.
static void finalise(int status) {
  std::this_thread::sleep_for(10 * kListen);
  std::thread([status] {
    std::this_thread::sleep_for(kOthersEnd);
    int finalised = 0;
    if (MPI_Finalized(&finalised), finalised)
      return;
    std::fflush(nullptr);
    _exit(status);
  }).detach();
  MPI_Finalize();
}

// After Python, when the C library ends the process and tells with which status.
void Runtime::finish(int status) {
  int finalised = 0;
  if (!started_ || forked_ || !initialised_here_ || meeting_ == MPI_COMM_NULL || (MPI_Finalized(&finalised), finalised))
    return;
  stop(false);
  if (!clean_)
    end_all(world_rank_, "ends with operations that never became complete");
  if (!others_end(status))
    end_all(world_rank_, c10::str("ends with status ", status), status);
  // Some MPIs warn of messages that nobody received: those to a rank that had given up.
  for (int left = 0; MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, meeting_, &left, MPI_STATUS_IGNORE) == MPI_SUCCESS && left;) {
    int64_t words[2];
    MPI_Recv(words, 2, MPI_INT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, meeting_, MPI_STATUS_IGNORE);
  }
  free_reductions();
  finalise(status);
}

}  // namespace torch_mpi
