#include "runtime.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace torch_mpi {
namespace {

// A test of several operations that took longer than this moved data: test again at once.
constexpr auto kMuchMoved = std::chrono::microseconds(3);
constexpr auto kShortestPause = std::chrono::microseconds(5);
constexpr auto kLongestPause = std::chrono::microseconds(100);
// A progress thread without work dozes so long, twice as long each time: a turn takes the core from a rank that works,
// which costs 8 microseconds or more.
constexpr auto kShortestDoze = std::chrono::milliseconds(1);
constexpr auto kLongestDoze = std::chrono::milliseconds(8);
// So many destroyed communicators are kept for a while.
constexpr size_t kRetired = 64;
// Before one is freed, we probe so often for a message that was never received; each probe makes MPI progress.
constexpr int kLastLooks = 10;

}  // namespace

Runtime& Runtime::get() {
  static auto* runtime = new Runtime;  // outlives every static object that may still hold a work
  return *runtime;
}

void Runtime::check_usable() const {
  TORCH_CHECK(usable(), "torch_mpi: MPI cannot be used any more (finalised, or a forked process)");
}

void Runtime::check_signals() const {
  if (syscall(SYS_gettid) != getpid())  // Python acts on them in its first thread
    return;
  const pybind11::gil_scoped_acquire python;
  if (PyErr_CheckSignals() != 0)
    throw pybind11::error_already_set();
}

void Runtime::start(Milliseconds timeout) {
  std::lock_guard<std::mutex> starting(start_mutex_);
  TORCH_CHECK(!forked_, "torch_mpi: MPI cannot be used in a forked process");
  TORCH_CHECK(!stopping_, "torch_mpi: MPI has been finalised");
  if (started_) {
    if (control_ == MPI_COMM_NULL)
      control_ = duplicate_world(timeout);
    return;
  }
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  TORCH_CHECK(!finalised, "torch_mpi: MPI has been finalised by another library in this process");
  if (initialised) {
    check_mpi(MPI_Query_thread(&thread_level_), "MPI_Query_thread");
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &thread_level_), "MPI_Init_thread");
    initialised_here_ = true;
    // Errors of requests go to these two in some libraries, whatever communicator they belong to.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  }
  TORCH_CHECK(
      thread_level_ >= MPI_THREAD_SERIALIZED,
      "torch_mpi: needs MPI_THREAD_SERIALIZED or more, but MPI was initialised with less",
      initialised_here_ ? "; this MPI library was built without threads"
                        : " by another library in this process; let that ask for MPI_THREAD_MULTIPLE");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size");
  pthread_atfork(nullptr, nullptr, [] { Runtime::get().forked_ = true; });
  on_exit([](int status, void*) { Runtime::get().end_process(status); }, nullptr);
  int* highest_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest_tag, &found);
  highest_tag_ = *highest_tag;
  const char* compare = std::getenv("TORCH_MPI_COMPARE");
  compares = !compare || std::string(compare) != "0";
  started_ = true;
  thread_ = std::thread([this] { progress_thread(); });
  control_ = duplicate_world(timeout);
}

void Runtime::add(const WorkPointer& work, bool asynchronous) {
  work->position_ = pending_.size();
  pending_.push_back(work);
  count_.store(pending_.size(), std::memory_order_relaxed);
  if (asynchronous)
    wake();
}

WorkPointer Runtime::remove(MPIWork& work) {
  const size_t position = work.position_;
  pending_[position].swap(pending_.back());
  pending_[position]->position_ = position;
  WorkPointer removed = std::move(pending_.back());
  pending_.pop_back();
  count_.store(pending_.size(), std::memory_order_relaxed);
  return removed;
}

void Runtime::poll(MPIWork& work) {
  if (!usable())
    return;
  WorkPointer held;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (work.state_.load(std::memory_order_relaxed) != MPIWork::pending || !work.advance())
      return;
    held = remove(work);
  }
  work.end(nullptr);
}

// Not under the lock: a call that comes too early is made up for by the end of the doze.
void Runtime::wake() {
  if (dozing_.load(std::memory_order_relaxed))
    wake_.notify_one();
}

// True when it was woken. Nobody wakes it from the shortest one: waking it is not cheap either.
bool Runtime::doze(Milliseconds time) {
  std::unique_lock<std::mutex> lock(doze_mutex_);
  dozing_ = time > kShortestDoze;
  const auto end = wake_.wait_for(lock, time);
  dozing_ = false;
  return end == std::cv_status::no_timeout;
}

void Runtime::progress_thread() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // nanoseconds; its pauses would be up to 50 microseconds too long otherwise
  Milliseconds idle = kShortestDoze;
  Clock::duration pause = kShortestPause;
  auto last_notice = Clock::now();
  const auto turn = [&] {
    if (all_waited_for()) {
      nudge_mpi();
      idle = doze(idle) ? kShortestDoze : std::min<Milliseconds>(idle * 2, kLongestDoze);
      pause = kShortestPause;
      return;
    }
    idle = kShortestDoze;
    if (test_all())
      pause = Clock::duration::zero();
    else
      pause = std::min<Clock::duration>(std::max<Clock::duration>(pause * 2, kShortestPause), kLongestPause);
    if (Clock::now() - last_notice >= kNoticeInterval) {
      give_up_late_ones();
      last_notice = Clock::now();
    }
    if (pause > Clock::duration::zero())
      std::this_thread::sleep_for(pause);
    else
      sched_yield();
  };
  while (!stopping_)
    try {
      turn();
    } catch (const std::exception& error) {  // out of memory, say: no reason to end the process
      std::fprintf(stderr, "torch_mpi: rank %d: error in the progress thread: %s\n", world_rank, error.what());
    }
}

// Tests all operations and ends those that are complete. True when data moved.
bool Runtime::test_all() {
  std::vector<WorkPointer> complete;
  bool moved = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto start = Clock::now();
    for (size_t i = pending_.size(); i-- > 0;) {
      MPIWork& work = *pending_[i];
      if (work.advance())
        complete.push_back(remove(work));
    }
    moved = !complete.empty() || Clock::now() - start > kMuchMoved;
  }
  for (auto& work : complete)
    work->end(nullptr);
  return moved;
}

// A send is complete for this rank once MPI has taken its data. Delivering them may still need MPI to be called here,
// although this program may be waiting for the receiver by other means: without this the two would wait for ever.
void Runtime::nudge_mpi() {
  const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock)
    return;  // somebody is calling MPI just now
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
}

Communicator::Communicator(MPI_Comm comm, const std::vector<int>& world_ranks)
    : handle(comm), world_ranks_(world_ranks) {
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  check_mpi(MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(handle, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(handle, &size), "MPI_Comm_size");
}

void Communicator::say_goodbye() {
  if (failed() || size == 1 || !Runtime::get().compares)
    return;
  auto goodbye = std::make_unique<Comparison>(Call{}, Call{}, rank, size);
  goodbye->post(handle, Runtime::get().tag(Runtime::call));
  comparisons.push_back(std::move(goodbye));
}

std::string Communicator::compare_earlier() {
  while (!comparisons.empty() && comparisons.front()->done()) {
    const auto earliest = std::move(comparisons.front());
    comparisons.pop_front();
    if (!earliest->agrees())
      return "in an earlier call " + earliest->disagreement();
  }
  if (!comparisons.empty())  // a root needs to wait for nobody, so it would not look
    look_for_notice();
  return reason();
}

static void free_unless_left_over(Communicator* oldest) {
  int found = 0;
  MPI_Comm comm = oldest->handle;
  for (int turn = 0; !found && turn < kLastLooks; ++turn)
    if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return;
  if (!found)
    MPI_Comm_free(&comm);
  delete oldest;
}

// Nobody uses it any more. (At its end Python destroys groups that are still to say goodbye: those are kept.) A later
// communicator may get the number of one that was freed, and with it messages that nobody received: from a rank whose
// operation failed while the others destroyed the group. They may be on their way still, so communicators are freed
// late, those with such a message (a failure sends a notice) never, and none before the left neighbour said goodbye.
void Runtime::retire(Communicator* communicator) {
  if (!usable())
    return;
  std::lock_guard<std::mutex> lock(mutex);
  communicators_.erase(communicator);
  communicator->say_goodbye();
  // A failed one has requests that will never be complete: MPI keeps it.
  if (communicator->failed() || communicator->leftovers)
    return;
  retired_.push_back(communicator);
  for (size_t surplus = retired_.size(); surplus > kRetired; --surplus) {
    auto* oldest = retired_.front();
    retired_.pop_front();
    const auto done = [](const auto& comparison) { return comparison->done(); };
    if (std::all_of(oldest->comparisons.begin(), oldest->comparisons.end(), done))
      free_unless_left_over(oldest);
    else
      retired_.push_back(oldest);
  }
}

std::shared_ptr<Communicator> Runtime::create(const std::vector<int>& world_ranks, Milliseconds timeout) {
  const MPI_Comm made = world_ranks.empty() ? duplicate_world(timeout) : create_group(world_ranks, timeout);
  const auto retired = [](Communicator* communicator) { Runtime::get().retire(communicator); };
  const std::shared_ptr<Communicator> communicator(new Communicator(made, world_ranks), retired);
  std::lock_guard<std::mutex> lock(mutex);
  communicators_.insert(communicator.get());
  return communicator;
}

void ControlMessages::send(int rank, int64_t value) const {
  // Small enough to leave at once; the memory stays where a rank that is gone never takes it.
  auto* message = new int64_t[2]{round, value};
  MPI_Request request = MPI_REQUEST_NULL;
  int complete = 0;
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  check_mpi(MPI_Isend(message, 2, MPI_INT64_T, rank, tag, comm, &request), "MPI_Isend");
  MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
  if (complete)
    delete[] message;
  else
    MPI_Request_free(&request);
}

std::map<int, int64_t> ControlMessages::receive(const std::vector<int>& ranks, Clock::time_point deadline) const {
  std::map<int, int64_t> values;
  Runtime::get().test_until(deadline, [&] {
    int64_t message[2];
    int found = 0;
    for (int rank : ranks)
      while (!values.count(rank) &&
             (check_mpi(MPI_Iprobe(rank, tag, comm, &found, MPI_STATUS_IGNORE), "MPI_Iprobe"), found)) {
        check_mpi(MPI_Recv(message, 2, MPI_INT64_T, rank, tag, comm, MPI_STATUS_IGNORE), "MPI_Recv");
        if (message[0] == round)
          values[rank] = message[1];
      }
    return values.size() == ranks.size();
  });
  return values;
}

[[noreturn]] static void ranks_missing() {
  C10_THROW_ERROR(DistBackendError, "torch_mpi: timed out creating a process group: not all of its ranks came");
}

// Creating a communicator blocks and knows no timeout, so it may only begin when all members are sure to take part. The
// first one waits for all; as some may have timed out since, it asks all once more, and then decides.
void Runtime::agree(const std::vector<int>& ranks, int64_t round, Milliseconds timeout) {
  enum : int64_t { here, asked, gone, begin, off };
  constexpr auto kAnswer = std::chrono::seconds(10);
  const ControlMessages control{control_, static_cast<int>(round % tag(notice)), round};
  const auto deadline = Clock::now() + timeout;
  const int first = ranks.front();
  bool all = false;
  if (world_rank == first) {
    const std::vector<int> others(ranks.begin() + 1, ranks.end());
    const auto all_here = [&](Clock::time_point until) {
      size_t count = 0;
      for (const auto& [rank, value] : control.receive(others, until))
        count += value == here;
      return count == others.size();
    };
    const auto send_all = [&](int64_t value) {
      for (int rank : others)
        control.send(rank, value);
    };
    if (all_here(deadline)) {
      send_all(asked);
      all = all_here(Clock::now() + kAnswer);
    }
    send_all(all ? begin : off);
  } else {
    const auto answer = [&](Clock::time_point until) {
      const auto values = control.receive({first}, until);
      return values.empty() ? gone : values.begin()->second;
    };
    control.send(first, here);
    int64_t value = answer(deadline);
    if (value == asked) {
      control.send(first, here);
      value = answer(Clock::now() + 2 * kAnswer);
    } else {
      control.send(first, gone);
    }
    all = value == begin;
  }
  if (!all)
    ranks_missing();
}

MPI_Comm Runtime::create_group(const std::vector<int>& world_ranks, Milliseconds timeout) {
  uint64_t round = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    round = created_[world_ranks]++;  // the same on all members
  }
  round = c10::get_hash(round, world_ranks) >> 1;
  agree(world_ranks, static_cast<int64_t>(round), timeout);
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Group all, some;
  std::unique_lock<std::mutex> lock(mutex);
  check_mpi(MPI_Comm_group(control_, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(world_ranks.size()), world_ranks.data(), &some), "MPI_Group_incl");
  // It blocks until all members are there: others may go on meanwhile, if MPI allows it.
  if (thread_level_ == MPI_THREAD_MULTIPLE)
    lock.unlock();
  const int code = MPI_Comm_create_group(control_, some, static_cast<int>(round % 32000), &made);
  if (!lock.owns_lock())
    lock.lock();
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check_mpi(code, "MPI_Comm_create_group");
  return made;
}

MPI_Comm Runtime::duplicate_world(Milliseconds timeout) {
  auto* made = new MPI_Comm(MPI_COMM_NULL);  // MPI may write there after this has given up
  MPI_Request request = MPI_REQUEST_NULL;
  {
    std::lock_guard<std::mutex> lock(mutex);
    check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, made, &request), "MPI_Comm_idup");
  }
  const bool complete = test_until(Clock::now() + timeout, [&] { return is_complete(request, "MPI_Comm_idup"); });
  if (!complete)
    ranks_missing();
  const std::unique_ptr<MPI_Comm> done(made);
  return *done;
}

}  // namespace torch_mpi
