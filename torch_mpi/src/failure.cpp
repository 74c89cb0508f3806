#include "runtime.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

namespace torch_mpi {
namespace {

constexpr auto kNoticeDelivery = std::chrono::seconds(1);
constexpr auto kDrain = std::chrono::seconds(5);
constexpr auto kOutputRead = std::chrono::seconds(1);
constexpr auto kOthersEnd = std::chrono::seconds(10);
// Who waits for a message so long asks whether its sender has ended; so long we wait for what may explain an error.
constexpr auto kPatience = std::chrono::milliseconds(500);
// In a collective so long: the neighbour that has not called it is named, as it may never.
constexpr auto kLate = std::chrono::seconds(60);
constexpr size_t kNoticeLength = 512;

void end_all(int rank, const std::string& why, int status = 1) {
  char node[MPI_MAX_PROCESSOR_NAME], time[sizeof "2026-11-26T15:29:45"];
  int length = 0;
  MPI_Get_processor_name(node, &length);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  std::strftime(time, sizeof time, "%FT%T", std::localtime(&now.tv_sec));
  std::fprintf(stderr, "torch_mpi: rank %d %s, so all ranks are ended\n", rank, why.c_str());
  // As pytorch-srun reports it, which is killed before it can: srun's own status, 137, would requeue the job.
  std::fprintf(stderr, "torch_mpi: rank %d on %s ended with status %d at %s.%09ld\n",
               rank, node, status, time, now.tv_nsec);
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
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

void check_mpi(int code, const char* what) {
  if (C10_UNLIKELY(code != MPI_SUCCESS))
    C10_THROW_ERROR(DistBackendError, c10::str("torch_mpi: ", what, ": ", mpi_error_text(code)));
}

bool is_complete(MPI_Request& request, const char* what) {
  int complete = 0;
  check_mpi(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), what);
  return complete != 0;
}

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
        MPI_Isend(text->data(), kNoticeLength, MPI_CHAR, other, runtime.tag(Runtime::notice), handle, &requests[other]);
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
  char text[kNoticeLength + 1] = {};
  const int tag = Runtime::get().tag(Runtime::notice);
  int found = 0;
  MPI_Status status;
  if (failed() || MPI_Iprobe(MPI_ANY_SOURCE, tag, handle, &found, &status) != MPI_SUCCESS || !found)
    return;
  MPI_Recv(text, kNoticeLength, MPI_CHAR, status.MPI_SOURCE, tag, handle, MPI_STATUS_IGNORE);
  mark_failed(text);
}

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

void MPIWork::give_up(const std::string& why) {
  if (!Runtime::get().usable())
    return;
  WorkPointer held;
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    if (state_.load(std::memory_order_acquire) != pending)
      return;
    state_.store(completing, std::memory_order_release);
    held = Runtime::get().remove(*this);
    compared();
  }
  const auto message = c10::str(description(), " of rank ", rank_, ": ", disagreement_.empty() ? why : disagreement_);
  const bool at_an_end = cancel_receive();
  if (at_an_end && !cancelled_)
    return end(nullptr);  // it arrived meanwhile
  if (!at_an_end) {
    communicator_->fail(message);
    Runtime::get().abandon(held);
  }
  end(error_of("torch_mpi: " + message));
}

void MPIWork::name_late_neighbour(Clock::time_point now) {
  if (neighbour_named_ || now < deadline_ - timeout_ + kLate)
    return;
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  neighbour_named_ = true;
  if (state_.load() == pending && !compared())
    std::fprintf(
        stderr, "torch_mpi: rank %d has waited for %lld s in %s; rank %d of its group has not called it yet\n", rank_,
        static_cast<long long>(kLate.count()), description().c_str(), comparison_->left());
}

// Its group has failed, maybe on another rank, or whoever sends or receives the other half has ended.
void MPIWork::give_up_if_lost(Clock::time_point now) {
  name_late_neighbour(now);
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    communicator_->look_for_notice();
  }
  if (communicator_->failed())
    give_up("the process group failed: " + communicator_->reason());
  else if (
      peer_ >= 0 && now >= deadline_ - timeout_ + kPatience &&
      Runtime::get().has_ended(communicator_->world_rank(peer_)))
    give_up(c10::str("rank ", peer_, " has ended"));
}

// Asks it by a message that it takes at its end only. What it sent before is on its way for a moment at most.
bool Runtime::has_ended(int process) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto [found, first] = questions_.try_emplace(process);
  auto& question = found->second;
  if (first)
    check_mpi(
        MPI_Issend(nullptr, 0, MPI_BYTE, process, tag(notice), control_, &question.request), "MPI_Issend");
  if (question.request != MPI_REQUEST_NULL && is_complete(question.request))
    question.answered = Clock::now();
  return Clock::now() - kPatience > question.answered;
}

void Runtime::abandon(WorkPointer work) {
  std::lock_guard<std::mutex> lock(mutex);
  abandoned_ = true;
  work.release();
}

void Runtime::give_up_late_ones() {
  std::vector<WorkPointer> works;
  {
    std::lock_guard<std::mutex> lock(mutex);
    works = pending_;
  }
  const auto now = Clock::now();
  for (auto& work : works) {
    work->give_up_if_lost(now);
    if (now >= work->deadline_)
      work->give_up(c10::str("Timed out after ", in_seconds(work->timeout_)));
  }
}

// MPI may refuse what does not fit what another rank sent; a rank that hears both calls explains it better.
void MPIWork::await_reason() {
  Runtime::get().test_until(Clock::now() + kPatience, [this] {
    communicator_->look_for_notice();
    return compared() && (is_message() || communicator_->failed() || !disagreement_.empty());
  });
}

// MPI may hold the memory of what was posted before the error, and the other ranks wait for all of it.
void Runtime::posting_failed(const WorkPointer& work) {
  work->await_reason();
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

// Operations nobody waited for, a send whose work was dropped for example, get a moment to become complete.
bool Runtime::drain() {
  const auto deadline = Clock::now() + kDrain;
  while (Clock::now() < deadline) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (pending_.empty() || abandoned_)
        return !abandoned_;
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
    wake();
  }
  thread_.join();
}

// Those to ranks that had given up (some MPIs warn of what is left over), and questions whether this rank has ended.
void Runtime::take_messages() {
  int64_t message[2];
  int found = 0;
  MPI_Status status;
  while (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_, &found, &status) == MPI_SUCCESS && found)
    MPI_Recv(message, 2, MPI_INT64_T, status.MPI_SOURCE, status.MPI_TAG, control_, MPI_STATUS_IGNORE);
}

void Runtime::let_go_of_messages() {
  retired_.insert(retired_.end(), communicators_.begin(), communicators_.end());
  for (auto* communicator : retired_)
    for (auto& comparison : communicator->comparisons)
      if (!comparison->done())
        comparison->cancel();
  for (auto& [process, question] : questions_)
    if (question.request != MPI_REQUEST_NULL)
      MPI_Request_free(&question.request);
}

// True when all ranks have come to their end, too. A rank that failed does not wait for the others for long.
bool Runtime::others_end(int status) {
  const auto deadline = Clock::now() + kOthersEnd;
  MPI_Request request = MPI_REQUEST_NULL;
  int complete = 0;
  MPI_Ibarrier(control_, &request);
  while (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && !complete) {
    if (status != 0 && Clock::now() > deadline)
      return false;
    take_messages();
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
    if (!gpu_aware_mpi_running())
      return;
    std::fflush(nullptr);
    _exit(status);
  }).detach();
  MPI_Finalize();
}

// After Python, when the C library ends the process: only now is the exit status known.
void Runtime::end_process(int status) {
  if (!started_ || forked_ || !initialised_here_ || control_ == MPI_COMM_NULL || !gpu_aware_mpi_running())
    return;
  stop(false);
  if (!clean_)
    end_all(world_rank, "ends with operations that never became complete");
  if (status == 0)  // with another one it ends all
    for (auto* communicator : communicators_)
      communicator->say_goodbye();
  if (!others_end(status))
    end_all(world_rank, c10::str("ends with status ", status), status);
  take_messages();
  let_go_of_messages();
  finalise(status);
}

}  // namespace torch_mpi
