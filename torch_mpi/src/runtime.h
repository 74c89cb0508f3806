// The process with its thread, the communicators, and the operations: README.rst in this folder is the map.
#pragma once

#include <c10/util/SmallVector.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agreement.h"
#include "gpu_aware.h"
#include "torch_api.h"

namespace torch_mpi {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

// How often a waiter looks whether its group has failed or its operation is late.
constexpr auto kNoticeInterval = Milliseconds(1);

// Throws when `code` is not MPI_SUCCESS; `what` is the MPI function.
void check_mpi(int code, const char* what);
// Under the lock; `what` began the request.
bool is_complete(MPI_Request& request, const char* what = "MPI_Test");
std::string mpi_error_text(int code);
std::exception_ptr error_of(const std::string& message);
std::string in_seconds(Milliseconds time);
// Between two tests: yields the core of this thread, or naps.
void rest(Clock::duration without_progress);

// Numbers sent between ranks with a time limit. `round` distinguishes them from those of an earlier exchange, which may
// have been left over.
struct ControlMessages {
  void send(int rank, int64_t value) const;
  // Rank → value, without the ranks that sent nothing in time. What a rank sends after that stays for the next round.
  std::map<int, int64_t> receive(const std::vector<int>& ranks, Clock::time_point deadline) const;

  MPI_Comm comm;
  int tag;
  int64_t round;
};

class MPIWork;
using WorkPointer = c10::intrusive_ptr<MPIWork>;

// A communicator and whether it can still be used. After a failure (a timeout, an error MPI reports, abort()) the
// ranks can no longer agree on what comes next, so every later call on it fails with that reason.
class Communicator {
 public:
  // Of these processes of MPI_COMM_WORLD; of all when there are none.
  Communicator(MPI_Comm comm, const std::vector<int>& world_ranks);

  const MPI_Comm handle;
  int rank = 0;
  int size = 1;
  // Calls that are over, but not their comparison; in their order, under the lock.
  std::deque<std::unique_ptr<Comparison>> comparisons;
  // Some ranks may never receive what was sent to them here.
  std::atomic<bool> leftovers{false};

  bool failed() const {
    return failed_.load(std::memory_order_acquire);
  }
  std::string reason();
  void throw_if_failed();
  // Marks it as failed and notifies the other ranks, so that they end with the same reason instead of waiting.
  void fail(const std::string& reason);
  // Under the lock. Has another rank sent notice of a failure?
  void look_for_notice();
  // Under the lock. What became of those that nobody waited for: why the group has failed, or nothing.
  std::string compare_earlier();
  // Under the lock. This rank makes no more calls here.
  void say_goodbye();
  // The process of MPI_COMM_WORLD that is this rank of the group.
  int world_rank(int of) const {
    return world_ranks_.empty() ? of : world_ranks_[of];
  }

 private:
  void mark_failed(const std::string& reason);

  const std::vector<int> world_ranks_;
  std::atomic<bool> failed_{false};
  std::mutex reason_mutex_;
  std::string reason_;
};

// One operation: its requests, the memory they use and what is left to do when they are complete.
class MPIWork : public c10d::Work {
 public:
  MPIWork(
      std::shared_ptr<Communicator> communicator,
      c10d::OpType type,
      const char* title,
      at::ArrayRef<at::Tensor> inputs,
      Tensors outputs,
      Milliseconds timeout);

  bool isCompleted() override;
  bool wait(Milliseconds timeout = kNoTimeout) override;
  bool isSuccess() const override {
    return done() && !exception_;
  }
  int sourceRank() const override {
    return source_;
  }
  Tensors result() override {
    return outputs_;
  }
  void synchronize() override {
    wait(kNoTimeout);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Under the lock: has MPI begin a part of the operation. `function` takes these, the communicator and a request.
  template <class Function, class... Arguments>
  void begin(const char* name, Function function, Arguments... arguments) {
    requests_.push_back(MPI_REQUEST_NULL);
    check_mpi(function(arguments..., communicator_->handle, &requests_.back()), name);
  }
  // The next part is a receive of so many bytes.
  void expect(int64_t bytes) {
    expected_.resize(requests_.size());
    expected_.push_back(bytes);
  }
  void keep(at::Tensor tensor) {
    kept_.push_back(std::move(tensor));
  }
  // Under the lock, before anything else is posted: has the ranks compare their calls. It is over before the left
  // neighbour was heard unless this rank needs something of all.
  void compare(Call mine, Call expected, bool needs_all);
  // Of a message.
  void set_peer(int rank) {
    peer_ = rank;
  }
  // Runs when all requests are complete, before the work is: copies results to where they belong.
  void then(std::function<void()> finish) {
    finish_.push_back(std::move(finish));
  }
  // A send or receive, and no collective.
  bool is_message() const {
    return c10d::isP2POp(opType_);
  }
  bool is_receive() const {
    return is_message() && opType_ != c10d::OpType::SEND;
  }

 private:
  friend class Runtime;
  enum State { pending, completing, complete };

  bool done() const {
    return state_.load(std::memory_order_acquire) == complete;
  }
  // Under the runtime's lock. True when there is nothing more to wait for: it is completing.
  bool advance();
  bool test_requests();
  bool falls_short(const MPI_Status& status);
  bool test_own_requests();
  // Without any lock: finishes and notifies everyone who waits.
  void end(std::exception_ptr error);
  void give_up(const std::string& why);
  void give_up_if_lost(Clock::time_point now);
  void name_late_neighbour(Clock::time_point now);
  bool compared();
  void await_reason();
  bool cancel_receive();
  std::string description() const;

  std::shared_ptr<Communicator> communicator_;
  const char* title_;
  Tensors outputs_;
  c10::SmallVector<at::Tensor, 2> kept_;
  c10::SmallVector<MPI_Request, 2> requests_;
  c10::SmallVector<int64_t, 2> expected_;  // by request; 0 of what is no receive
  size_t complete_requests_ = 0;
  std::unique_ptr<Comparison> comparison_;
  bool needs_all_ = true;
  std::atomic<bool> neighbour_named_{false};
  std::string disagreement_;
  int peer_ = -1;
  std::vector<std::function<void()>> finish_;
  Clock::time_point deadline_;
  Milliseconds timeout_;
  bool cancelled_ = false;
  bool future_ended_ = false;  // under mutex_
  int source_ = -1;
  int mpi_error_ = MPI_SUCCESS;
  size_t position_ = 0;  // in Runtime::pending_
  std::atomic<bool> waited_for_{false};
  std::atomic<State> state_{pending};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class Runtime {
 public:
  static Runtime& get();

  // Initialises MPI unless somebody else has, and starts the progress thread.
  void start(Milliseconds timeout);
  // At the end of Python. `failed`: by an exception nobody caught, so the other ranks must not wait.
  void stop(bool failed);
  // MPI is initialised, not finalised, and this is not a forked child.
  bool usable() const {
    return started_ && !stopping_ && !forked_;
  }
  void check_usable() const;
  // Ctrl-C while this thread waits; throws what Python makes of it.
  void check_signals() const;

  // Around every call of MPI.
  std::mutex mutex;

  // Posts the requests of an operation; what MPI completes at once, as it does small messages, needs nothing more.
  template <class Post>
  WorkPointer post(const WorkPointer& work, bool asynchronous, const Post& post_requests) {
    try {
      std::lock_guard<std::mutex> lock(mutex);
      post_requests();
      if (!work->advance()) {
        add(work, asynchronous);
        return work;
      }
    } catch (...) {
      posting_failed(work);
      throw;
    }
    work->end(nullptr);
    return work;
  }
  // Under the lock: nobody needs to test it any more.
  WorkPointer remove(MPIWork& work);
  // Tests one operation and ends it when it is complete.
  void poll(MPIWork& work);
  // Calls `test` under the lock until it returns true, or returns false at the deadline. Ctrl-C ends it.
  template <class Test>
  bool test_until(Clock::time_point deadline, const Test& test) {
    const auto start = Clock::now();
    while (true) {
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (test())
          return true;
      }
      if (Clock::now() > deadline)
        return false;
      check_signals();
      rest(Clock::now() - start);
    }
  }
  // Its requests may still write into its memory: neither is ever released.
  void abandon(WorkPointer work);
  // Has this process of MPI_COMM_WORLD come to its end? The first call asks it, which answers when it has.
  bool has_ended(int world_rank);
  // Makes the progress thread look now.
  void wake();

  // Creates a communicator of these ranks, which alone call it; of all when there are none.
  std::shared_ptr<Communicator> create(const std::vector<int>& world_ranks, Milliseconds timeout);

  // Set once, before or by start().
  enum gpu_platform platform = GPU_PLATFORM_OTHER;
  int world_rank = 0;
  int world_size = 1;
  // Do the ranks compare their calls?
  bool compares = true;
  // The highest tags are reserved.
  enum Reserved { notice, barrier, exchanged, call, reserved };
  int tag(Reserved use) const {
    return highest_tag_ - use;
  }

 private:
  friend class MPIWork;
  Runtime() = default;
  bool all_waited_for() const {
    return waited_for_.load(std::memory_order_relaxed) >= count_.load(std::memory_order_relaxed);
  }
  void add(const WorkPointer& work, bool asynchronous);
  void progress_thread();
  bool test_all();
  void give_up_late_ones();
  void nudge_mpi();
  void retire(Communicator* communicator);
  void take_messages();
  void let_go_of_messages();
  bool doze(Milliseconds time);
  bool drain();
  void end_process(int status);
  bool others_end(int status);
  void posting_failed(const WorkPointer& work);
  MPI_Comm duplicate_world(Milliseconds timeout);
  MPI_Comm create_group(const std::vector<int>& world_ranks, Milliseconds timeout);
  void agree(const std::vector<int>& ranks, int64_t round, Milliseconds timeout);

  std::vector<WorkPointer> pending_;
  // Read without the lock: how many those are, and how many of them somebody waits for, and so tests.
  std::atomic<size_t> count_{0};
  std::atomic<size_t> waited_for_{0};
  bool abandoned_ = false;
  // Those in use, and those that are freed later; under the lock.
  std::set<Communicator*> communicators_;
  std::deque<Communicator*> retired_;
  struct Question {
    MPI_Request request = MPI_REQUEST_NULL;
    Clock::time_point answered = Clock::time_point::max();
  };
  std::map<int, Question> questions_;  // to these processes: have they ended?
  std::map<std::vector<int>, unsigned> created_;  // how many groups of these ranks there were
  MPI_Comm control_ = MPI_COMM_NULL;  // of all processes, for the members of a new group and for the end
  std::thread thread_;
  std::condition_variable wake_;
  std::mutex doze_mutex_;
  std::atomic<bool> dozing_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> started_{false};
  std::mutex start_mutex_;
  bool initialised_here_ = false;
  bool clean_ = true;
  int thread_level_ = MPI_THREAD_SINGLE;
  int highest_tag_ = 32767;
  bool forked_ = false;
};

}  // namespace torch_mpi
