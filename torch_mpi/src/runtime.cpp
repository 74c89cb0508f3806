#include "runtime.h"

#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "memory.h"
#include "reduction.h"

namespace torch_mpi {
namespace {

constexpr auto kNoticeInterval = std::chrono::milliseconds(1);
// A test that took longer than this moved data: test again at once. The progress thread tests several, out of its sleep.
constexpr auto kDataMoved = std::chrono::microseconds(1);
constexpr auto kMuchMoved = std::chrono::microseconds(3);
constexpr auto kShortestPause = std::chrono::microseconds(5);
constexpr auto kLongestPause = std::chrono::microseconds(100);
// A progress thread that nobody needs looks again after so long, each time after twice as long: it takes the core of a
// rank that works, which costs 8 microseconds or more.
constexpr auto kShortestDoze = std::chrono::milliseconds(1);
constexpr auto kLongestDoze = std::chrono::milliseconds(8);
// A waiter tests so often before it offers its core to others between the tests, and naps after so long without news.
constexpr unsigned kSpins = 100;
constexpr auto kSpin = std::chrono::milliseconds(20);
constexpr auto kNap = std::chrono::microseconds(20);
constexpr auto kNoticeDelivery = std::chrono::seconds(1);
constexpr auto kDrain = std::chrono::seconds(5);
constexpr auto kLastWords = std::chrono::seconds(2);
// So many destroyed communicators are kept for a while.
constexpr size_t kRetired = 64;
// How often it is looked, before one is freed, whether a message nobody received is there; each look moves MPI on.
constexpr int kLastLooks = 10;
constexpr size_t kNoticeLength = 512;

// The thread's sleeps are of microseconds, the kernel's default is to be up to 50 late.
void sleep_precisely() {
#ifdef PR_SET_TIMERSLACK
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
#endif
}

std::string in_seconds(Milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000, " s");
}

// What this process wrote and nobody has read yet, when that is a pipe.
int unread(int stream) {
  struct stat status;
  int bytes = 0;
  if (fstat(stream, &status) != 0 || !S_ISFIFO(status.st_mode) || ioctl(stream, FIONREAD, &bytes) != 0)
    return 0;
  return bytes;
}

// MPICH's mpirun drops what it has not read when a rank ends all, the reason among it. So it gets a moment.
void end_all(int rank, const char* why) {
  std::fprintf(stderr, "torch_mpi: rank %d %s, so all ranks are ended\n", rank, why);
  std::fflush(nullptr);
  const auto deadline = Clock::now() + kLastWords;
  while (unread(STDOUT_FILENO) + unread(STDERR_FILENO) > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(kShortestDoze);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

std::exception_ptr error_of(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

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

// ---------------------------------------------------------------------------------------------- Communicator

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

// --------------------------------------------------------------------------------------------------- MPIWork

MPIWork::MPIWork(
    std::shared_ptr<Communicator> communicator,
    c10d::OpType type,
    const char* title,
    const OptionalTensors& inputs,
    std::vector<at::Tensor> outputs,
    Milliseconds timeout)
    // Without a profiler there are no inputs and no title: preparing a record costs time even when nobody reads it.
    : c10d::Work(communicator->rank(), type, inputs ? title : nullptr, inputs),
      communicator_(std::move(communicator)),
      title_(title),
      outputs_(std::move(outputs)),
      deadline_(Clock::now() + timeout),
      timeout_(timeout) {}

bool MPIWork::test_requests() {
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
    if (receive_)
      source_ = status.MPI_SOURCE;
  }
  return true;
}

bool MPIWork::advance() {
  while (true) {
    if (!test_requests())
      return false;
    if (mpi_error_ != MPI_SUCCESS || complete_stages_ == stages_.size())
      return true;
    try {
      stages_[complete_stages_++]();
    } catch (...) {
      stage_error_ = std::current_exception();
      return true;
    }
  }
}

std::string MPIWork::description() const {
  return std::strncmp(title_, "mpi:", 4) == 0 ? title_ + 4 : title_;
}

void MPIWork::end(std::exception_ptr error) {
  if (!error && mpi_error_ != MPI_SUCCESS) {
    const auto reason = c10::str(description(), ": ", mpi_error_text(mpi_error_));
    communicator_->fail(reason);
    Runtime::get().abandon(WorkPointer::reclaim_copy(this));
    error = error_of("torch_mpi: " + reason);
  }
  if (!error)
    error = stage_error_;
  const bool mpi_is_done = complete_requests_ == requests_.size();
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
  if (mpi_is_done) {
    finish_.clear();
    stages_.clear();
    kept_.clear();
    kept_data_.clear();
  }
  c10d::Work::finish(error);  // under mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    future = future_;
  }
  state_.store(complete, std::memory_order_release);
  done_.store(true, std::memory_order_release);
  if (!future)
    return;
  if (error)
    future->setError(error);
  else
    future->markCompleted(c10::IValue(outputs_));
}

bool MPIWork::isCompleted() {
  if (!done_.load(std::memory_order_acquire))
    Runtime::get().poll(*this);
  return done_.load(std::memory_order_acquire);
}

bool MPIWork::isSuccess() const {
  return done_.load(std::memory_order_acquire) && !exception_;
}

std::exception_ptr MPIWork::exception() const {
  return done_.load(std::memory_order_acquire) ? exception_ : nullptr;
}

int MPIWork::sourceRank() const {
  return source_;
}

std::vector<at::Tensor> MPIWork::result() {
  return outputs_;
}

void MPIWork::synchronize() {
  wait(kNoTimeout);
}

// While somebody waits for an operation the progress thread has nothing to do for it.
struct MPIWork::Attendance {
  explicit Attendance(MPIWork& work) : work_(work), first_(!work.attended_.exchange(true)) {
    if (first_)
      Runtime::get().attended_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Attendance() {
    if (!first_)
      return;
    Runtime::get().attended_.fetch_sub(1, std::memory_order_relaxed);
    work_.attended_.store(false);
  }
  MPIWork& work_;
  const bool first_;
};

bool MPIWork::wait(Milliseconds asked) {
  auto& runtime = Runtime::get();
  if (!done_.load(std::memory_order_acquire)) {
    const Attendance attendance(*this);
    const bool sooner = asked > kNoTimeout && Clock::now() + asked < deadline_;
    const auto limit = sooner ? Clock::now() + asked : deadline_;
    Clock::time_point news{}, notice{};
    for (unsigned turn = 0;; ++turn) {
      if (turn < kSpins) {
        runtime.poll(*this);
        if (done_.load(std::memory_order_acquire))
          break;
        continue;
      }
      const auto before = Clock::now();
      runtime.poll(*this);
      if (done_.load(std::memory_order_acquire))
        break;
      const auto now = Clock::now();
      if (news == Clock::time_point{})
        news = notice = before;
      if (now - notice >= kNoticeInterval) {
        notice = now;
        communicator_->look_for_notice();
        if (communicator_->failed())
          give_up("the process group failed: " + communicator_->reason());
      }
      if (now >= limit)
        give_up(c10::str("Timed out after ", in_seconds(sooner ? asked : timeout_)));
      if (now - before > kDataMoved) {
        news = now;
        turn = 0;
      } else if (now - news > kSpin) {
        std::this_thread::sleep_for(kNap);
      } else {
        sched_yield();
      }
    }
  }
  if (exception_)
    std::rethrow_exception(exception_);
  return true;
}

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
  WorkPointer held;
  {
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    if (state_.load(std::memory_order_acquire) != pending)
      return;
    state_.store(completing, std::memory_order_release);
    held = Runtime::get().remove(*this);
  }
  const auto message = c10::str(description(), " of rank ", rank_, ": ", reason);
  if (!cancel_receive()) {
    communicator_->fail(message);
    Runtime::get().abandon(held);
  }
  end(error_of("torch_mpi: " + message));
}

void MPIWork::abort() {
  give_up("aborted");
}

c10::intrusive_ptr<c10::ivalue::Future> MPIWork::getFuture() {
  bool created = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      created = true;
    }
    if (created && completed_) {
      if (exception_)
        future_->setError(exception_);
      else
        future_->markCompleted(c10::IValue(outputs_));
    }
  }
  Runtime::get().wake();
  return future_;
}

// --------------------------------------------------------------------------------------------------- Runtime

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

void Runtime::abandon(const WorkPointer& work) {
  std::lock_guard<std::mutex> lock(mutex);
  abandoned_.push_back(work);
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

// A send is complete for this rank once MPI has taken its data. Delivering them may still need MPI to be called here,
// although this program may be waiting for the receiver by other means: without this the two would wait for ever.
void Runtime::push_on() {
  const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock)
    return;  // somebody is calling MPI just now
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
}

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

void Runtime::stop(bool failed) {
  if (!usable())
    return;
  if (failed && world_size_ > 1)
    end_all(world_rank_, "ends by an error");
  const bool clean = drain();
  {
    std::lock_guard<std::mutex> lock(mutex);
    stopping_ = true;
    wake();
  }
  thread_.join();
  if (!initialised_here_)
    return;
  if (!clean)
    end_all(world_rank_, "ends with operations that never became complete");
  free_reductions();
  MPI_Finalize();
}

void Runtime::await_all(std::vector<MPI_Request>& requests, Clock::time_point deadline) {
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
    sched_yield();
  }
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
