#include "runtime.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

namespace torch_mpi {
namespace {

// A test of several operations that took longer than this moved data: test again at once.
constexpr auto kMuchMoved = std::chrono::microseconds(3);
constexpr auto kShortestPause = std::chrono::microseconds(5);
constexpr auto kLongestPause = std::chrono::microseconds(100);
// A progress thread that nobody needs looks again after so long, each time after twice as long: it takes the core of a
// rank that works, which costs 8 microseconds or more.
constexpr auto kShortestDoze = std::chrono::milliseconds(1);
constexpr auto kLongestDoze = std::chrono::milliseconds(8);
// So many destroyed communicators are kept for a while.
constexpr size_t kRetired = 64;
// How often it is looked, before one is freed, whether a message nobody received is there; each look moves MPI on.
constexpr int kLastLooks = 10;

// The thread's sleeps are of microseconds, the kernel's default is to be up to 50 late.
void sleep_precisely() {
#ifdef PR_SET_TIMERSLACK
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
#endif
}

}  // namespace

// ---------------------------------------------------------------------------------------- the process and its thread

Runtime& Runtime::get() {
  static auto* runtime = new Runtime;  // outlives every static object that may still hold a work
  return *runtime;
}

bool Runtime::usable() const {
  return started_ && !stopping_ && !forked_;
}

void Runtime::start() {
  std::lock_guard<std::mutex> lock(mutex);
  TORCH_CHECK(!forked_, "torch_mpi: MPI cannot be used in a forked process");
  TORCH_CHECK(!stopping_, "torch_mpi: MPI has been finalised");
  if (started_)
    return;
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  TORCH_CHECK(!finalised, "torch_mpi: MPI has been finalised by somebody else in this process");
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
      "torch_mpi: needs MPI_THREAD_SERIALIZED or more, but MPI was initialised with ",
      thread_level_ == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED",
      initialised_here_ ? "; this MPI library was built without threads"
                        : " by somebody else in this process; let it ask for MPI_THREAD_MULTIPLE");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world_size_), "MPI_Comm_size");
  pthread_atfork(nullptr, nullptr, [] { Runtime::get().forked_ = true; });
  started_ = true;
  thread_ = std::thread([this] { run(); });
}

void Runtime::add(const WorkPointer& work, bool asynchronous) {
  work->position_ = under_way_.size();
  under_way_.push_back(work);
  count_.store(under_way_.size(), std::memory_order_relaxed);
  if (asynchronous)
    wake();
}

WorkPointer Runtime::remove(MPIWork& work) {
  const size_t position = work.position_;
  under_way_[position].swap(under_way_.back());
  under_way_[position]->position_ = position;
  WorkPointer removed = std::move(under_way_.back());
  under_way_.pop_back();
  count_.store(under_way_.size(), std::memory_order_relaxed);
  return removed;
}

void Runtime::poll(MPIWork& work) {
  WorkPointer held;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (work.state_.load(std::memory_order_relaxed) != MPIWork::pending || !work.advance())
      return;
    work.state_.store(MPIWork::completing, std::memory_order_release);
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

void Runtime::run() {
  sleep_precisely();
  Milliseconds idle = kShortestDoze;
  Clock::duration pause = kShortestPause;
  auto last_notice = Clock::now();
  while (!stopping_) {
    if (all_attended()) {
      push_on();
      idle = doze(idle) ? kShortestDoze : std::min<Milliseconds>(idle * 2, kLongestDoze);
      pause = kShortestPause;
      continue;
    }
    idle = kShortestDoze;
    if (tend())
      pause = Clock::duration::zero();
    else
      pause = std::min<Clock::duration>(std::max<Clock::duration>(pause * 2, kShortestPause), kLongestPause);
    if (Clock::now() - last_notice >= kNoticeInterval) {
      look_after();
      last_notice = Clock::now();
    }
    if (pause > Clock::duration::zero())
      std::this_thread::sleep_for(pause);
    else
      sched_yield();
  }
}

// Tests all operations and ends those that are complete. True when something moved.
bool Runtime::tend() {
  std::vector<WorkPointer> complete;
  bool moved = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto start = Clock::now();
    for (size_t i = under_way_.size(); i-- > 0;) {
      MPIWork& work = *under_way_[i];
      if (!work.advance())
        continue;
      work.state_.store(MPIWork::completing, std::memory_order_release);
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
void Runtime::push_on() {
  const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock)
    return;  // somebody is calling MPI just now
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
}

// ---------------------------------------------------------------------------------------------- communicators

Communicator::Communicator(MPI_Comm comm) : comm_(comm) {
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, &limit, &found);
  if (found)
    tag_limit_ = *limit;
}

Communicator::~Communicator() {
  // A failed one has requests that will never be complete: MPI keeps it.
  if (failed() || messages_left_ || !Runtime::get().usable())
    return;
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  Runtime::get().retire(comm_);
}

// A later communicator may get the number of one that was freed, and with it the messages that nobody received: from a
// rank whose operation failed while the others destroyed the group. They may also still be on their way, so that
// communicators are freed late, and those with such a message (a failure sends a notice) never.
void Runtime::retire(MPI_Comm comm) {
  retired_.push_back(comm);
  if (retired_.size() <= kRetired)
    return;
  MPI_Comm oldest = retired_.front();
  retired_.pop_front();
  int found = 0;
  for (int turn = 0; !found && turn < kLastLooks; ++turn)
    if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, oldest, &found, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return;
  if (!found)
    MPI_Comm_free(&oldest);
}

// Creating a communicator blocks and knows no timeout. So the members meet first, in a way that does.
void Runtime::await_members(const std::vector<int>& ranks, int tag, Milliseconds timeout) {
  static char nothing;
  const auto deadline = Clock::now() + timeout;
  const int rank = world_rank_;
  const int first = ranks.front();
  std::vector<MPI_Request> requests;
  const auto exchange = [&](bool send) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      requests.clear();
      for (int other : ranks) {
        if (rank == first ? other == first : other != first)
          continue;
        requests.push_back(MPI_REQUEST_NULL);
        if (send)
          check_mpi(MPI_Isend(&nothing, 0, MPI_BYTE, other, tag, meeting_, &requests.back()), "MPI_Isend");
        else
          check_mpi(MPI_Irecv(&nothing, 0, MPI_BYTE, other, tag, meeting_, &requests.back()), "MPI_Irecv");
      }
    }
    await_all(requests, deadline);
  };
  exchange(/*send=*/rank != first);
  exchange(/*send=*/rank == first);
}

MPI_Comm Runtime::create(const std::vector<int>& world_ranks, Milliseconds timeout) {
  // Only MPI_COMM_WORLD is there when the default group is of another backend; others may use that one, so no
  // messages of ours in it.
  const MPI_Comm parent = meeting_ == MPI_COMM_NULL ? MPI_COMM_WORLD : meeting_;
  unsigned tag = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    tag = created_[world_ranks]++;  // the same on all members
    for (int rank : world_ranks)
      tag = tag * 31 + static_cast<unsigned>(rank) + 7;
    tag %= 32000;
  }
  if (parent == meeting_)
    await_members(world_ranks, static_cast<int>(tag), timeout);
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Group all, some;
  std::unique_lock<std::mutex> lock(mutex);
  check_mpi(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(world_ranks.size()), world_ranks.data(), &some), "MPI_Group_incl");
  // It blocks until all members are there: others may go on meanwhile, if MPI allows it.
  if (thread_level_ == MPI_THREAD_MULTIPLE)
    lock.unlock();
  const int code = MPI_Comm_create_group(parent, some, static_cast<int>(tag), &made);
  if (!lock.owns_lock())
    lock.lock();
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check_mpi(code, "MPI_Comm_create_group");
  return made;
}

MPI_Comm Runtime::duplicate_world(Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto duplicate = [&] {
    MPI_Comm made = MPI_COMM_NULL;
    std::vector<MPI_Request> requests(1, MPI_REQUEST_NULL);
    {
      std::lock_guard<std::mutex> lock(mutex);
      check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &made, &requests[0]), "MPI_Comm_idup");
    }
    await_all(requests, deadline);
    return made;
  };
  if (meeting_ == MPI_COMM_NULL)
    meeting_ = duplicate();
  return duplicate();
}

}  // namespace torch_mpi
