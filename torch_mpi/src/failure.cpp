#include "runtime.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>

#include "reduction.h"

namespace torch_mpi {
namespace {

constexpr auto kNoticeDelivery = std::chrono::seconds(1);
constexpr auto kDrain = std::chrono::seconds(5);
constexpr auto kOutputRead = std::chrono::seconds(1);
constexpr auto kOthersEnd = std::chrono::seconds(10);
// Who waits for a message so long asks whether its sender has ended; so long we wait for what may explain an error.
constexpr auto kPatience = std::chrono::milliseconds(500);
constexpr size_t kNoticeLength = 512;

void end_all(int rank, const std::string& why, int status = 1) {
  std::fprintf(stderr, "torch_mpi: rank %d %s, so all ranks are ended\n", rank, why.c_str());
  std::fflush(nullptr);
  // When a rank aborts, MPICH's mpirun drops the output that it has not read yet, this reason included.
  std::this_thread::sleep_for(kOutputRead);
  MPI_Abort(MPI_COMM_WORLD, status);
}

}  // namespace

std::string in_seconds(Milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000, " s");
}

std::exception_ptr error_of(const std::string& message) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, message));
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
  auto& runtime = Runtime::get();
  if (failed() || !runtime.usable())
    return;
  mark_failed(reason);
  // Sent without waiting for long; memory and requests of what could not be delivered stay with MPI.
  auto* text = new std::vector<char>(kNoticeLength, '\0');
  std::snprintf(text->data(), kNoticeLength, "rank %d: %s", rank, reason.c_str());
  std::vector<MPI_Request> requests(static_cast<size_t>(size), MPI_REQUEST_NULL);
  const auto deadline = Clock::now() + kNoticeDelivery;
  int delivered = 0;
  {
    std::lock_guard<std::mutex> lock(runtime.mutex);
    for (int other = 0; other < size; ++other)
      if (other != rank)
        MPI_Isend(text->data(), kNoticeLength, MPI_CHAR, other, runtime.notice_tag, handle, &requests[other]);
  }
  while (!delivered && Clock::now() < deadline) {
    std::lock_guard<std::mutex> lock(runtime.mutex);
    if (MPI_Testall(size, requests.data(), &delivered, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
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
  const int tag = Runtime::get().notice_tag;
  int found = 0;
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, handle, &found, &status) != MPI_SUCCESS || !found)
      return;
    MPI_Recv(text.data(), kNoticeLength, MPI_CHAR, status.MPI_SOURCE, tag, handle, MPI_STATUS_IGNORE);
  }
  mark_failed(text.data());
}

// ---------------------------------------------------------------------------------- an operation that is given up

// A receive can be taken back, and the group stays usable; a collective cannot.
bool MPIWork::cancel_receive() {
  if (!is_receive())
    return false;
  const auto deadline = Clock::now() + kNoticeDelivery;
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    MPI_Cancel(&requests_.front());
  }
  while (Clock::now() < deadline) {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
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

// What it sent is on its way for a moment at most.
void MPIWork::give_up_if_peer_ended(Clock::time_point now) {
  if (peer_ < 0 || now < deadline_ - timeout_ + kPatience)
    return;
  const int process = communicator_->world_rank(peer_);
  if (Runtime::get().has_ended(process))
    give_up(c10::str("rank ", peer_, " has ended"));
}

bool Runtime::has_ended(int process) {
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    first = asked_.insert(process).second;
  }
  if (first)
    ControlMessages(control_, notice_tag, 0).send(process, /*has it ended?*/ false);
  std::lock_guard<std::mutex> lock(mutex);
  hear_of_ends();
  const auto found = ended_.find(process);
  return found != ended_.end() && Clock::now() > found->second + kPatience;
}

// Under the lock. A message is a question, or the answer to one.
void Runtime::hear_of_ends() {
  int64_t message[2];
  int found = 0;
  MPI_Status status;
  while (MPI_Iprobe(MPI_ANY_SOURCE, notice_tag, control_, &found, &status) == MPI_SUCCESS && found) {
    MPI_Recv(message, 2, MPI_INT64_T, status.MPI_SOURCE, notice_tag, control_, MPI_STATUS_IGNORE);
    if (message[1])
      ended_[status.MPI_SOURCE] = Clock::now();
    else
      askers_.push_back(status.MPI_SOURCE);
  }
}

void MPIWork::abort() {
  give_up("aborted");
}

void Runtime::abandon(const WorkPointer& work) {
  std::lock_guard<std::mutex> lock(mutex);
  abandoned_.push_back(work);
}

// Also those of a group of which another rank sent notice of a failure.
void Runtime::give_up_late_ones() {
  std::vector<WorkPointer> works;
  {
    std::lock_guard<std::mutex> lock(mutex);
    works = pending_;
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
    else
      work->give_up_if_peer_ended(now);
  }
}

// MPI may refuse what does not fit what another rank sent; the neighbour's call, if that is it, says it better.
void MPIWork::await_neighbour() {
  Runtime::get().test_until(Clock::now() + kPatience, [this] { return compared(); });
}

// MPI may hold the memory of what was posted before the error, and the other ranks wait for all of it.
void Runtime::posting_failed(const WorkPointer& work) {
  work->await_neighbour();
  bool held = work->comparison_ != nullptr;
  for (const auto request : work->requests_)
    held |= request != MPI_REQUEST_NULL;
  if (held)
    abandon(work);
  if (work->is_message())
    return;
  const auto& disagreement = work->disagreement_;
  const auto whose = c10::str(work->description(), " of rank ", work->rank_);
  work->communicator_->fail(whose + (disagreement.empty() ? " could not be started" : ": " + disagreement));
  if (!disagreement.empty())
    C10_THROW_ERROR(DistBackendError, c10::str("torch_mpi: ", whose, ": ", disagreement));
}

// ------------------------------------------------------------------------------------------ the end of the process

// Operations nobody waited for, a send whose work was dropped for example, get a moment to become complete.
bool Runtime::drain() {
  const auto deadline = Clock::now() + kDrain;
  while (Clock::now() < deadline) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (pending_.empty() || !abandoned_.empty())
        return abandoned_.empty();
    }
    test_all();
    sched_yield();
  }
  return false;
}

// When Python ends. The exit status is not known yet, so neither is whether the other ranks must be ended.
void Runtime::stop(bool failed) {
  if (!usable())
    return;
  if (failed && world_size > 1)
    end_all(world_rank, "ends by an error");
  clean_ = drain();
  {
    std::lock_guard<std::mutex> lock(mutex);
    stopping_ = true;
    keep_communicators();
    wake();
  }
  thread_.join();
}

// Under the lock: this rank has made its last call in every group. Python destroys these while it ends.
void Runtime::keep_communicators() {
  std::set<Communicator*> kept;
  for (auto* communicator : communicators)
    if (!communicator->failed())
      kept.insert(communicator->twin().release());
  communicators.swap(kept);
}

void Runtime::say_goodbyes() {
  for (auto* communicator : communicators) {
    communicator->say_goodbye();
    retired_.emplace_back(communicator->handle, std::move(communicator->comparisons_));
  }
}

void Runtime::answer_askers() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    hear_of_ends();
  }
  for (const int asker : askers_)
    ControlMessages(control_, notice_tag, 0).send(asker, /*it has ended*/ true);
  askers_.clear();
}

void Runtime::cancel_comparisons() {
  for (auto& [comm, comparisons] : retired_)
    for (auto& comparison : comparisons)
      if (!comparison->done())
        comparison.release()->cancel();
}

// True when all ranks have come to their end, too. A rank that failed does not wait for the others for long.
bool Runtime::others_end(int status) {
  const auto deadline = Clock::now() + kOthersEnd;
  MPI_Request request = MPI_REQUEST_NULL;
  int complete = 0;
  if (MPI_Ibarrier(control_, &request) != MPI_SUCCESS)
    return true;
  while (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && !complete) {
    if (status != 0 && Clock::now() > deadline)
      return false;
    answer_askers();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

// MPICH 4.0 with UCX over TCP: a rank that lets go of another waits for its answer, and one that was answered reads no
// more. So a rank that is answered while its neighbour still leaves the barrier makes it wait for ever. The pause makes
// that rare; and nothing is lost any more when a process ends without MPI.
static void finalise(int status) {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
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

// After Python, when the C library ends the process: only now is the exit status known.
void Runtime::end_process(int status) {
  int finalised = 0;
  if (!started_ || forked_ || !initialised_here_ || control_ == MPI_COMM_NULL || (MPI_Finalized(&finalised), finalised))
    return;
  stop(false);
  if (!clean_)
    end_all(world_rank, "ends with operations that never became complete");
  if (status == 0)  // with another one it ends all
    say_goodbyes();
  if (!others_end(status))
    end_all(world_rank, c10::str("ends with status ", status), status);
  // Receive messages to ranks that had given up: some MPIs warn of those left over.
  int64_t message[2];
  int left = 0;
  while (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_, &left, MPI_STATUS_IGNORE) == MPI_SUCCESS && left)
    MPI_Recv(message, 2, MPI_INT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, control_, MPI_STATUS_IGNORE);
  cancel_comparisons();
  free_reductions();
  finalise(status);
}

}  // namespace torch_mpi
