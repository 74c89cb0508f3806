// The collectives of a process group on MPI.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime.h"

namespace torch_mpi {

class MPIBackend : public c10d::Backend {
 public:
  MPIBackend(std::shared_ptr<Communicator> communicator, std::vector<int> world_ranks, Milliseconds timeout);

  // Of all processes MPI started when `ranks` is empty, else of these, which alone call it.
  static c10::intrusive_ptr<MPIBackend> create(std::vector<int> ranks, Milliseconds timeout);

  const std::string getBackendName() const override {
    return "mpi";
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>&, const c10d::AllreduceCoalescedOptions&) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>&, const c10d::ReduceOptions&) override;
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>&, std::vector<at::Tensor>&, const c10d::GatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> scatter(
      std::vector<at::Tensor>&, std::vector<std::vector<at::Tensor>>&, const c10d::ScatterOptions&) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>&, std::vector<std::vector<at::Tensor>>&, const c10d::ReduceScatterOptions&) override;
  c10::intrusive_ptr<c10d::Work> alltoall(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::AllToAllOptions&) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int rank, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int rank, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>&, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;

  // Collectives of one tensor: two names each, the second one from 2.14 on. No `override`: see torch_api.h.
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&);
  c10::intrusive_ptr<c10d::Work> all_gather_single(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&);
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&);
  c10::intrusive_ptr<c10d::Work> all_gather_single_coalesced(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&);
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_single(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::ReduceScatterOptions&);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_single_coalesced(
      std::vector<at::Tensor>&, std::vector<at::Tensor>&, const c10d::ReduceScatterOptions&);
  c10::intrusive_ptr<c10d::Work> gather_into_tensor(at::Tensor&, at::Tensor&, const c10d::GatherOptions&);
  c10::intrusive_ptr<c10d::Work> gather_single(at::Tensor&, at::Tensor&, const c10d::GatherOptions&);
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&, const c10d::AllToAllOptions&);
  c10::intrusive_ptr<c10d::Work> all_to_all_single(
      at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&, const c10d::AllToAllOptions&);

  // What newer versions ask of a backend.
  bool supportsSplitting() const;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>&, const c10::intrusive_ptr<Options>&);
  c10::intrusive_ptr<Options> getBackendOptions();
  void setTimeout(Milliseconds timeout);
  void startCoalescing();
  c10::intrusive_ptr<c10d::Work> endCoalescing();
  void setSequenceNumberForGroup();
  uint64_t getSequenceNumberForGroup();
  void abort();
  void shutdown();

 private:
  WorkPointer make(
      c10d::OpType type,
      const char* title,
      at::ArrayRef<at::Tensor> inputs,
      std::vector<at::Tensor> outputs,
      Milliseconds timeout);
  template <class Post>
  c10::intrusive_ptr<c10d::Work> launch(WorkPointer work, bool asynchronous, const Post& post);
  void compare_calls(uint64_t number, c10d::OpType type, at::ArrayRef<at::Tensor> inputs, Milliseconds timeout);
  Milliseconds timeout_or_default(Milliseconds asked) const;
  MPI_Comm comm() const {
    return communicator_->handle();
  }
  void check_rank(int64_t rank, const char* what) const;
  void check_tag(int tag) const;

  // Each prepares its memory at once and returns what is to be posted under the lock.
  auto reducing(MPIWork& work, const at::Tensor& tensor, const c10d::ReduceOp& op);
  auto gathering(MPIWork& work, const at::Tensor& output, const at::Tensor& input);
  std::function<void()> gathering(MPIWork& work, std::vector<at::Tensor>& outputs, const at::Tensor& input);
  std::function<void()> reduce_scattering(
      MPIWork& work, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op);

  std::shared_ptr<Communicator> communicator_;
  std::vector<int> world_ranks_;
  Milliseconds timeout_;
  std::atomic<uint64_t> sequence_{0};
  int64_t monitored_barriers_ = 0;
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<c10d::Work>> coalesced_;
};

}  // namespace torch_mpi
