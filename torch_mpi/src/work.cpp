#include "runtime.h"

#include <c10/util/ScopeExit.h>
#include <sched.h>
#include <sys/resource.h>

#include <cstring>
#include <utility>

#include "memory.h"

namespace torch_mpi {
namespace {

// A test that took longer than this moved data: test again at once.
constexpr auto kDataMoved = std::chrono::microseconds(1);
// A waiter tests so often before it yields its core between tests, and naps after so long without progress.
constexpr unsigned kSpins = 100;
constexpr auto kSpin = std::chrono::milliseconds(20);
// Naps last a quarter of the time without progress, within these limits.
constexpr Clock::duration kShortestNap = std::chrono::microseconds(20), kLongestNap = std::chrono::microseconds(200);
// Another program ran when a yield took so long. Twice in a row means that cores are scarce, for a while at least.
constexpr auto kOthersRan = std::chrono::microseconds(300);
constexpr auto kInARow = std::chrono::milliseconds(20);
constexpr auto kScarce = std::chrono::milliseconds(100);

std::atomic<Clock::time_point> scarce_until{Clock::time_point{}};

bool scarce(Clock::time_point now) {
  return now < scarce_until.load(std::memory_order_relaxed);
}

// How often this thread has left its core, of its own will or not.
long departures() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw + usage.ru_nivcsw : 0;
}

// Those before the present wait, and its own naps: they say nothing of other programs.
thread_local long known_departures = 0;

// True when another program ran since `before`, while this thread had yielded; MPI yields in some tests, too.
bool others_ran(Clock::time_point before, Clock::time_point now) {
  static std::atomic<Clock::time_point> last{Clock::time_point{}};
  if (now - before < kOthersRan)
    return false;
  const long known = std::exchange(known_departures, departures());
  if (known == known_departures)
    return false;  // data were moved all the time
  if (before - last.exchange(now, std::memory_order_relaxed) < kInARow)
    scarce_until.store(now + kScarce, std::memory_order_relaxed);
  return true;
}

}  // namespace

// Where cores are scarce, a thread that naps gets a core back soon after it wakes up; one that has used up its share by
// testing waits for milliseconds.
void rest(Clock::duration without_progress) {
  const auto now = Clock::now();
  if (without_progress > kSpin || scarce(now)) {
    std::this_thread::sleep_for(std::min(std::max(without_progress / 4, kShortestNap), kLongestNap));
    known_departures = departures();
    return;
  }
  sched_yield();
  others_ran(now, Clock::now());
}

MPIWork::MPIWork(
    std::shared_ptr<Communicator> communicator,
    c10d::OpType type,
    const char* title,
    at::ArrayRef<at::Tensor> inputs,
    std::vector<at::Tensor> outputs,
    Milliseconds timeout)
    // Without a profiler there are no inputs and no title: preparing a record costs time even when nobody reads it.
    : c10d::Work(
          communicator->rank,
          type,
          at::hasCallbacks() ? title : nullptr,
          at::hasCallbacks() ? inputs.vec() : Tensors()),
      communicator_(std::move(communicator)),
      title_(title),
      outputs_(std::move(outputs)),
      deadline_(Clock::now() + timeout),
      timeout_(timeout) {}

void MPIWork::compare(Call mine, Call expected, bool needs_all) {
  if (communicator_->size == 1 || !Runtime::get().compares)
    return;
  disagreement_ = communicator_->compare_earlier();
  if (!disagreement_.empty())
    C10_THROW_ERROR(DistBackendError, disagreement_);
  needs_all_ = needs_all;
  mine.what = expected.what = static_cast<int32_t>(opType_);
  comparison_ = std::make_unique<Comparison>(mine, expected, communicator_->rank, communicator_->size);
  comparison_->post(communicator_->handle, Runtime::get().tag(Runtime::call));
}

// Has the left neighbour been heard? Where the ranks disagree this sets disagreement_.
bool MPIWork::compared() {
  if (!comparison_ || !disagreement_.empty())
    return true;
  if (!comparison_->heard())
    return false;
  if (!comparison_->agrees())
    disagreement_ = comparison_->disagreement();
  return true;
}

// Some of the collectives are over while nobody knows yet whether others call the same.
bool MPIWork::test_requests() {
  const bool heard = compared();
  if (C10_UNLIKELY(!disagreement_.empty()))
    return true;
  if (!test_own_requests())
    return false;
  if (!comparison_ || mpi_error_ != MPI_SUCCESS)
    return true;
  if (needs_all_ && !heard)
    return false;
  if (comparison_->done() && heard)
    comparison_.reset();
  else
    communicator_->comparisons.push_back(std::move(comparison_));
  return true;
}

// Has another rank sent less than this one expects? MPI itself notices more.
bool MPIWork::falls_short(const MPI_Status& status) {
  const auto expected = expected_[complete_requests_];
  MPI_Count bytes = expected;
  if (expected > 0)
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  if (bytes < expected)
    disagreement_ = c10::str(
        "the ranks disagree: rank ", status.MPI_SOURCE, " sends ", bytes, " bytes, rank ", rank_, " receives ",
        expected);
  return bytes < expected;
}

bool MPIWork::test_own_requests() {
  for (; complete_requests_ < requests_.size(); ++complete_requests_) {
    MPI_Status status;
    int complete = 0;
    const int code = MPI_Test(&requests_[complete_requests_], &complete, &status);
    if (C10_UNLIKELY(code != MPI_SUCCESS)) {
      mpi_error_ = code;
      return true;
    }
    if (!complete)
      return false;
    if (complete_requests_ < expected_.size() && falls_short(status))
      return true;
    if (is_receive()) {
      int cancelled = 0;
      MPI_Test_cancelled(&status, &cancelled);
      cancelled_ = cancelled != 0;
      source_ = status.MPI_SOURCE;
    }
  }
  return true;
}

bool MPIWork::advance() {
  if (!test_requests())
    return false;
  state_.store(completing, std::memory_order_release);
  return true;
}

std::string MPIWork::description() const {
  return title_ + std::strlen("mpi:");
}

void MPIWork::end(std::exception_ptr error) {
  if (!error && (mpi_error_ != MPI_SUCCESS || !disagreement_.empty())) {
    await_reason();
    const auto known = disagreement_.empty() && communicator_->failed() ? communicator_->reason() : disagreement_;
    const auto reason = c10::str(
        description(), " of rank ", rank_, ": ", known.empty() ? mpi_error_text(mpi_error_) : known);
    communicator_->fail(reason);
    Runtime::get().abandon(WorkPointer::reclaim_copy(this));
    error = error_of("torch_mpi: " + reason);
  }
  try {
    if (!error) {
      c10::NoGradGuard no_grad;
      for (auto& finish : finish_)
        finish();
      if (!finish_.empty())
        for (auto& output : outputs_)
          await_stream(output.device());
    }
  } catch (...) {
    error = std::current_exception();
  }
  if (complete_requests_ == requests_.size()) {
    finish_.clear();
    kept_.clear();
  }
  c10d::Work::finish(error);  // under mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    future_ended_ = true;  // one that getFuture() makes from now on it completes itself
    future = future_;
  }
  state_.store(complete, std::memory_order_release);
  if (!future)
    return;
  // Callbacks run now, maybe on the progress thread, where an exception would end the process.
  try {
    if (error)
      future->setError(error);
    else
      future->markCompleted(c10::IValue(outputs_));
  } catch (const std::exception& problem) {
    TORCH_WARN("torch_mpi: a callback of ", description(), " failed: ", problem.what());
  }
}

bool MPIWork::isCompleted() {
  if (!done())
    Runtime::get().poll(*this);
  return done();
}

bool MPIWork::wait(Milliseconds asked) {
  auto& runtime = Runtime::get();
  if (!done()) {
    runtime.check_usable();
    // While somebody waits for an operation the progress thread has nothing to do for it.
    const bool first = !waited_for_.exchange(true);
    runtime.waited_for_.fetch_add(first, std::memory_order_relaxed);
    const auto leave = c10::make_scope_exit([&] {
      runtime.waited_for_.fetch_sub(first, std::memory_order_relaxed);
      if (first)
        waited_for_.store(false);
    });
    const bool sooner = asked > kNoTimeout && Clock::now() + asked < deadline_;
    const auto limit = sooner ? Clock::now() + asked : deadline_;
    auto before = Clock::now(), progress = before, notice = before;
    unsigned spins = scarce(before) ? 1 : kSpins;
    for (unsigned turn = 0;; ++turn) {
      if (turn >= spins)
        before = Clock::now();
      runtime.poll(*this);
      if (done())
        break;
      if (turn == 0)
        known_departures = departures();
      const auto now = Clock::now();
      const bool lost = others_ran(before, now), moved = now - before > kDataMoved;
      before = now;
      if (lost)
        spins = 1;
      else if (turn < spins)
        continue;
      if (now - notice >= kNoticeInterval) {
        notice = now;
        runtime.check_signals();
        give_up_if_lost(now);
      }
      if (now >= limit)
        give_up(c10::str("Timed out after ", in_seconds(sooner ? asked : timeout_)));
      if (moved && !lost) {
        progress = now;
        turn = 0;
      } else {
        rest(now - progress);
      }
    }
  }
  if (exception_)
    std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> MPIWork::getFuture() {
  std::lock_guard<std::mutex> lock(mutex_);
  Runtime::get().wake();
  if (future_)
    return future_;
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (future_ended_ && exception_)
    future_->setError(exception_);
  else if (future_ended_)
    future_->markCompleted(c10::IValue(outputs_));
  return future_;
}

}  // namespace torch_mpi
