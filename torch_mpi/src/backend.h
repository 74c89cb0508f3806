// The collectives of a process group on MPI.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory.h"

namespace torch_mpi {

using WorkHandle = c10::intrusive_ptr<c10d::Work>;

class MPIBackend : public c10d::Backend {
 public:
  MPIBackend(std::shared_ptr<Communicator> communicator, Milliseconds timeout);

  static c10::intrusive_ptr<MPIBackend> create(const std::vector<int>& ranks, Milliseconds timeout);

  const std::string getBackendName() const override {
    return "mpi";
  }

  WorkHandle broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkHandle allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkHandle allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkHandle allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  WorkHandle reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkHandle allgather(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkHandle allgather_coalesced(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkHandle gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
  WorkHandle scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) override;
  WorkHandle reduce_scatter(Tensors&, std::vector<Tensors>&, const c10d::ReduceScatterOptions&) override;
  WorkHandle alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  WorkHandle send(Tensors&, int rank, int tag) override;
  WorkHandle recv(Tensors&, int rank, int tag) override;
  WorkHandle recvAnysource(Tensors&, int tag) override;
  WorkHandle barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;

  // From 2.14 on these have other names (all_gather_single), which forward to these.
  WorkHandle _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  WorkHandle allgather_into_tensor_coalesced(Tensors&, Tensors&, const c10d::AllgatherOptions&) override;
  WorkHandle _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  WorkHandle reduce_scatter_tensor_coalesced(Tensors&, Tensors&, const c10d::ReduceScatterOptions&) override;
  WorkHandle alltoall_base(
      at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&, const c10d::AllToAllOptions&) override;

  // Not virtual in all versions.
  void setTimeout(Milliseconds timeout) {
    timeout_ = timeout;
  }
  uint64_t getSequenceNumberForGroup() {
    return sequence_.load();
  }
  void abort() {
    communicator_->fail("the process group was aborted");
  }

 private:
  WorkPointer make(
      c10d::OpType type, const char* title, at::ArrayRef<at::Tensor> inputs, Tensors outputs, Milliseconds timeout);
  void check_rank(int64_t rank, const char* what) const;
  void check_tag(int tag) const;
  // Of gather's outputs or scatter's inputs: empty but on the root.
  const Tensors& list_of_root(
      const std::vector<Tensors>& lists, const at::Tensor& model, int64_t root, const char* what) const;

  // Each prepares its memory at once and returns what is to be posted under the lock.
  auto reducing(MPIWork& work, const at::Tensor& tensor, const c10d::ReduceOp& op);
  // `outputs`: one for each rank, or one with room for all.
  std::function<void()> gathering(MPIWork& work, TensorList outputs, const at::Tensor& input);
  // `parts`: those that the input consists of, where they may differ in length.
  auto reduce_scattering(
      MPIWork& work, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
      TensorList parts = {});

  std::shared_ptr<Communicator> communicator_;
  Milliseconds timeout_;
  std::atomic<uint64_t> sequence_{0};
  int64_t monitored_barriers_ = 0;
};

}  // namespace torch_mpi
