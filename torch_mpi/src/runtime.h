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
#include <string>
#include <thread>
#include <vector>

#include "gpu_aware.h"
#include "torch_api.h"

namespace torch_mpi {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// How often it is looked whether a group has failed or is late.
constexpr auto kNoticeInterval = Milliseconds(1);

// Throws when `code` is not MPI_SUCCESS; `what` is the MPI function.
void check_mpi(int code, const char* what);
std::string mpi_error_text(int code);
std::exception_ptr error_of(const std::string& message);
std::string in_seconds(Milliseconds time);
// Between two tests: offers the core of this thread to others.
void rest(Clock::duration without_news);

// Small messages with a time limit about one subject; the number of that tells them from those of an earlier one, which
// may have been left over. Every rank may talk to several.
class Talk {
 public:
  Talk(MPI_Comm comm, int tag, int64_t subject) : comm_(comm), tag_(tag), subject_(subject) {}
  void say(int rank, int64_t word) const;
  // Rank → word; those that said nothing in time are not in it.
  std::map<int, int64_t> hear(const std::vector<int>& ranks, Clock::time_point deadline) const;

 private:
  MPI_Comm comm_;
  int tag_;
  int64_t subject_;
};

class MPIWork;
using WorkPointer = c10::intrusive_ptr<MPIWork>;

// A communicator and whether it can still be used. After a failure (a timeout, an error MPI reports, abort()) the
// ranks can no longer agree on what comes next, so every later call on it fails and says why.
class Communicator {
 public:
  explicit Communicator(MPI_Comm comm);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  MPI_Comm handle() const {
    return comm_;
  }
  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  // The highest tag is kept for the notice of a failure, the next one for monitoredBarrier, one for all_gather.
  int notice_tag() const;
  int barrier_tag() const {
    return notice_tag() - 1;
  }
  int gather_tag() const {
    return notice_tag() - 2;
  }
  int highest_user_tag() const {
    return notice_tag() - 3;
  }

  bool failed() const {
    return failed_.load(std::memory_order_acquire);
  }
  std::string reason();
  void throw_if_failed();
  // Marks it as failed and tells the other ranks, so that they end with the same reason instead of waiting.
  void fail(const std::string& reason);
  // Some ranks may never receive what was sent to them here.
  void messages_stay() {
    messages_left_.store(true, std::memory_order_relaxed);
  }
  // Has another rank told that it failed?
  void look_for_notice();

 private:
  void mark_failed(const std::string& reason);

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::atomic<bool> failed_{false};
  std::atomic<bool> messages_left_{false};
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
      const OptionalTensors& inputs,
      std::vector<at::Tensor> outputs,
      Milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // To be used while the operation is put together.
  MPI_Request* add_request() {
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }
  void keep(at::Tensor tensor) {
    kept_.push_back(std::move(tensor));
  }
  void keep(std::shared_ptr<void> data) {
    kept_data_.push_back(std::move(data));
  }
  // Runs when all requests are complete, before the work is: copies results to where they belong.
  void then(std::function<void()> finish) {
    finish_.push_back(std::move(finish));
  }
  // Runs when all requests are complete, under the lock, and may add further ones: an operation of several stages.
  void next(std::function<void()> stage) {
    stages_.push_back(std::move(stage));
  }
  void is_receive() {
    receive_ = true;
  }
  // A send or receive, and no collective.
  bool is_message() const {
    return opType_ == c10d::OpType::SEND || opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE;
  }

 private:
  friend class Runtime;
  struct Attendance;
  enum State { pending, completing, complete };

  // Under the runtime's lock. True when there is nothing more to wait for.
  bool advance();
  bool test_requests();
  // Without any lock: finishes and tells everyone who waits.
  void end(std::exception_ptr error);
  void give_up(const std::string& reason);
  bool cancel_receive();
  std::string description() const;

  std::shared_ptr<Communicator> communicator_;
  const char* title_;
  std::vector<at::Tensor> outputs_;
  c10::SmallVector<at::Tensor, 2> kept_;
  std::vector<std::shared_ptr<void>> kept_data_;
  c10::SmallVector<MPI_Request, 2> requests_;
  size_t complete_requests_ = 0;
  std::vector<std::function<void()>> finish_;
  std::vector<std::function<void()>> stages_;
  size_t complete_stages_ = 0;
  Clock::time_point deadline_;
  Milliseconds timeout_;
  bool receive_ = false;
  bool cancelled_ = false;
  bool future_ended_ = false;  // under mutex_
  int source_ = -1;
  int mpi_error_ = MPI_SUCCESS;
  std::exception_ptr stage_error_;
  size_t position_ = 0;  // in Runtime::under_way_
  std::atomic<bool> attended_{false};  // somebody is in wait()
  std::atomic<State> state_{pending};
  std::atomic<bool> done_{false};
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
  bool usable() const;
  void check_usable() const;
  // Ctrl-C while this thread waits; throws what Python makes of it.
  void heed_signals() const;
  std::function<void()> act_on_signals;

  // Around every call of MPI.
  std::mutex mutex;

  // Posts the requests of an operation; what MPI completes at once, as it does small messages, needs nothing more.
  template <class Post>
  void launch(const WorkPointer& work, bool asynchronous, const Post& post) {
    std::exception_ptr error;
    {
      std::lock_guard<std::mutex> lock(mutex);
      try {
        post();
        if (!work->advance()) {
          add(work, asynchronous);
          return;
        }
        work->state_.store(MPIWork::completing, std::memory_order_release);
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (C10_UNLIKELY(error != nullptr))
      posting_failed(work, error);
    work->end(nullptr);
  }
  // Under the lock: nobody needs to test it any more.
  WorkPointer remove(MPIWork& work);
  // Tests one operation and ends it when it is complete.
  void poll(MPIWork& work);
  // Its requests may still write into its memory: neither is ever released.
  void abandon(const WorkPointer& work);
  // Nobody uses this communicator any more; under the lock.
  void retire(MPI_Comm comm);
  void wake();

  // Creates a communicator of these ranks; called by its members only.
  MPI_Comm create(const std::vector<int>& world_ranks, Milliseconds timeout);
  MPI_Comm duplicate_world(Milliseconds timeout) {
    return duplicate(timeout);
  }

  int world_rank() const {
    return world_rank_;
  }
  int world_size() const {
    return world_size_;
  }

  int tag_limit() const {
    return tag_limit_;
  }

  enum gpu_platform platform = GPU_PLATFORM_OTHER;

 private:
  friend struct MPIWork::Attendance;
  Runtime() = default;
  bool all_attended() const {
    return attended_.load(std::memory_order_relaxed) >= count_.load(std::memory_order_relaxed);
  }
  void add(const WorkPointer& work, bool asynchronous);
  void run();
  bool tend();
  void look_after();
  void push_on();
  bool doze(Milliseconds time);
  bool drain();
  void finish(int status);
  bool others_end(int status);
  void posting_failed(const WorkPointer& work, std::exception_ptr error);
  MPI_Comm duplicate(Milliseconds timeout);
  void agree(const std::vector<int>& ranks, int64_t subject, Milliseconds timeout);
  void await_all(std::vector<MPI_Request>& requests, Clock::time_point deadline);

  std::vector<WorkPointer> under_way_;
  // Read without the lock: how many those are, and how many of them somebody waits for, and so tests.
  std::atomic<size_t> count_{0};
  std::atomic<size_t> attended_{0};
  std::vector<WorkPointer> abandoned_;
  std::deque<MPI_Comm> retired_;
  std::map<std::vector<int>, unsigned> created_;  // how many groups of these ranks there were
  MPI_Comm meeting_ = MPI_COMM_NULL;  // where the members of a new group meet; of the whole world
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
  bool forked_ = false;
  int world_rank_ = 0;
  int world_size_ = 1;
  int tag_limit_ = 32767;
};

inline int Communicator::notice_tag() const {
  return Runtime::get().tag_limit();
}

}  // namespace torch_mpi
