#include "backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "reduction.h"

namespace torch_mpi {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Posts = std::vector<std::function<void()>>;

// Below a megabyte Open MPI's own non-blocking all_gather takes up to twice as long as the messages it consists of
// (torch_mpi/benchmarks).
bool gathers_by_messages(int ranks, int64_t bytes) {
#if defined(OPEN_MPI)
  return ranks <= 4 && bytes <= 1 << 20;
#else
  return false;
#endif
}

const at::Tensor& only(const Tensors& tensors, const char* what) {
  TORCH_CHECK(tensors.size() == 1, "torch_mpi: ", what, " takes one tensor, not ", tensors.size());
  return tensors.front();
}

void check_same_type(TensorList tensors, const at::Tensor& model, const char* what) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK(
        tensor.scalar_type() == model.scalar_type(), "torch_mpi: ", what, ": the tensors must have one type, not ",
        model.scalar_type(), " and ", tensor.scalar_type());
    TORCH_CHECK(
        tensor.device().type() == model.device().type(), "torch_mpi: ", what, ": the tensors must be on one device");
  }
}

bool same_length(TensorList tensors) {
  for (const auto& tensor : tensors)
    if (tensor.numel() != tensors.front().numel())
      return false;
  return true;
}

void divide(at::Tensor tensor, int by) {
  const auto type = tensor.scalar_type();
  if (at::isIntegralType(type, /*includeBool=*/false))
    tensor.div_(by, "trunc");
  else if (type == at::kComplexHalf || c10::elementSize(type) == 1)
    tensor.copy_(tensor.to(at::toOpMathType(type)).div_(by));
  else
    tensor.div_(by);
}

void then_divide(MPIWork& work, const at::Tensor& tensor, const ReduceOp& op, int by) {
  if (op == ReduceOp::AVG)
    work.then([tensor, by] { divide(tensor, by); });
}

// The tensor itself unless the operation is PREMUL_SUM.
at::Tensor premultiplied(const at::Tensor& tensor, const ReduceOp& op) {
  if (C10_LIKELY(op != ReduceOp::PREMUL_SUM))
    return tensor;
  c10::NoGradGuard no_grad;
  const auto* factor = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(factor, "torch_mpi: ReduceOp.PREMUL_SUM needs its factor");
  const auto scaled = factor->tensor_factor.defined() ? tensor.mul(factor->tensor_factor.to(tensor.device()))
                                                      : tensor.mul(factor->double_factor);
  return scaled.to(tensor.scalar_type());
}

// Prepares a reduction in place.
Piece reduction_buffer(MPIWork& work, at::Tensor tensor, const ReduceOp& op, int ranks) {
  const c10::NoGradGuard no_grad;
  if (C10_UNLIKELY(op == ReduceOp::PREMUL_SUM))
    tensor.copy_(premultiplied(tensor, op));
  const auto buffer = memory_of(work, tensor, Use::both);
  then_divide(work, tensor, op, ranks);
  return buffer;
}

// What a call of this rank is like, and what the left neighbour's must be like.
struct Agreement {
  Agreement(const Call& call, bool needs_all = true) : mine(call), expected(call), needs_all(needs_all) {}
  Agreement(const Call& mine, const Call& expected) : mine(mine), expected(expected) {}
  Call mine, expected;
  bool needs_all = true;
};

Call call_of(TensorList tensors, int64_t root = Call::kNone) {
  Call call;
  size_t lengths = 0;
  for (const auto& tensor : tensors) {
    call.type = static_cast<int32_t>(tensor.scalar_type());
    call.elements += tensor.numel();
    lengths = c10::hash_combine(lengths, static_cast<size_t>(tensor.numel()));
  }
  call.lengths = static_cast<int64_t>(lengths);
  call.root = static_cast<int32_t>(root);
  return call;
}

Call call_of(TensorList tensors, const ReduceOp& op, int64_t root = Call::kNone) {
  auto call = call_of(tensors, root);
  call.reduction = static_cast<int32_t>(op.op_);
  return call;
}

// Where each pair of ranks exchanges another amount: what neighbours exchange. What comes of others has its length.
Agreement agreement_of(
    const at::Tensor& model, int rank, const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
  const size_t size = sends.size(), left = (rank + size - 1) % size, right = (rank + 1) % size;
  auto mine = call_of(model), expected = mine;
  const auto width = static_cast<int64_t>(model.element_size());
  mine.elements = sends[right].bytes / width;
  mine.lengths = receives[right].bytes / width;
  expected.elements = receives[left].bytes / width;
  expected.lengths = sends[left].bytes / width;
  return {mine, expected};
}

template <class Options, class Post>
WorkHandle post(const WorkPointer& work, const Options& options, const Agreement& agreement, const Post& requests) {
  return Runtime::get().post(work, asked_async(options, 0), [&] {
    work->compare(agreement.mine, agreement.expected, agreement.needs_all);
    requests();
  });
}

template <class Options>
WorkHandle post_all(
    const WorkPointer& work, const Options& options, const Agreement& agreement, const Posts& posts) {
  return post(work, options, agreement, [&] {
    for (auto& each : posts)
      each();
  });
}

}  // namespace

MPIBackend::MPIBackend(std::shared_ptr<Communicator> communicator, Milliseconds timeout)
    : Backend(communicator->rank, communicator->size),
      communicator_(std::move(communicator)),
      timeout_(timeout) {
  init();
}

c10::intrusive_ptr<MPIBackend> MPIBackend::create(const std::vector<int>& ranks, Milliseconds timeout) {
  auto& runtime = Runtime::get();
  runtime.start(timeout);
  return c10::make_intrusive<MPIBackend>(runtime.create(ranks, timeout), timeout);
}

void MPIBackend::check_rank(int64_t rank, const char* what) const {
  TORCH_CHECK(rank >= 0 && rank < size_, "torch_mpi: ", what, ": there is no rank ", rank, " in this group of ", size_);
}

void MPIBackend::check_tag(int tag) const {
  const int highest = Runtime::get().tag(Runtime::reserved);
  TORCH_CHECK(tag >= 0 && tag <= highest, "torch_mpi: the tag must be from 0 to ", highest, ", not ", tag);
}

const Tensors& MPIBackend::list_of_root(
    const std::vector<Tensors>& lists, const at::Tensor& model, int64_t root, const char* what) const {
  static const Tensors none;
  check_rank(root, what);
  const bool is_root = root == rank_;
  TORCH_CHECK(
      is_root ? lists.size() == 1 && lists[0].size() == static_cast<size_t>(size_) : lists.empty(), "torch_mpi: ", what,
      ": one list of ", size_, " tensors is needed on rank ", root, ", and none on the others");
  if (!is_root)
    return none;
  check_same_type(lists[0], model, what);
  TORCH_CHECK(
      same_length(lists[0]) && lists[0][0].numel() == model.numel(), "torch_mpi: ", what,
      ": all tensors must have the same number of elements");
  return lists[0];
}

WorkPointer MPIBackend::make(
    OpType type, const char* title, at::ArrayRef<at::Tensor> inputs, Tensors outputs, Milliseconds timeout) {
  communicator_->throw_if_failed();
  Runtime::get().check_usable();
  sequence_.fetch_add(1, std::memory_order_relaxed);
  return c10::make_intrusive<MPIWork>(
      communicator_, type, title, inputs, std::move(outputs), timeout > kNoTimeout ? timeout : timeout_);
}

auto MPIBackend::reducing(MPIWork& work, const at::Tensor& tensor, const ReduceOp& op) {
  const auto reduction = reduction_for(tensor.scalar_type(), op);
  const auto buffer = reduction_buffer(work, tensor, op, size_);
  const int64_t elements = tensor.numel(), width = tensor.element_size();
  return [this, &work, reduction, buffer, elements, width] {
    choose_all_reduce(buffer.bytes, size_);
    in_parts(elements, [&](int64_t start, int count) {
      char* part = buffer.data + start * width;
      work.begin("MPI_Iallreduce", MPI_Iallreduce, MPI_IN_PLACE, part, count, reduction.type, reduction.op);
    });
  };
}

std::function<void()> MPIBackend::gathering(MPIWork& work, TensorList outputs, const at::Tensor& input) {
  const bool is_list = outputs.size() != 1;
  check_same_type(outputs, input, "all_gather");
  const int64_t room = is_list ? outputs[rank_].numel() : outputs[0].numel() / size_;
  TORCH_CHECK(
      room == input.numel() && (is_list || outputs[0].numel() % size_ == 0), "torch_mpi: all_gather: the input has ",
      input.numel(), " elements, but the output for this rank ", room);
  const auto from = memory_of(work, input, Use::send);
  if (gathers_by_messages(size_, from.bytes) || (is_list && !same_length(outputs))) {
    std::vector<Piece> sends(size_, from), receives;
    if (is_list) {
      for (const auto& output : outputs)
        receives.push_back(memory_of(work, output, Use::receive));
    } else {
      char* const to = memory_of(work, outputs, Use::receive).data;
      for (int rank = 0; rank < size_; ++rank)
        receives.push_back({to + from.bytes * rank, from.bytes});
    }
    if (input.is_cpu() && from.bytes > 0) {  // or it is there already: in place
      std::memmove(receives[rank_].data, from.data, static_cast<size_t>(from.bytes));
      sends[rank_].bytes = receives[rank_].bytes = 0;
    }
    return [this, &work, sends = std::move(sends), receives = std::move(receives)] {
      exchange(work, rank_, sends, receives);
    };
  }
  char* const to = memory_of(work, outputs, Use::receive).data;
  return [this, &work, from, to] {
    const Span span(from.bytes);
    void* const source = from.data == to + from.bytes * rank_ && from.bytes > 0 ? MPI_IN_PLACE : from.data;
    work.begin("MPI_Iallgather", MPI_Iallgather, source, span.count, span.type, to, span.count, span.type);
  };
}

auto MPIBackend::reduce_scattering(
    MPIWork& work, const at::Tensor& output, const at::Tensor& input, const ReduceOp& op, TensorList parts) {
  TORCH_CHECK(
      !parts.empty() || input.numel() == output.numel() * size_, "torch_mpi: reduce_scatter: the input must be ", size_,
      " times as large as the output, but they have ", input.numel(), " and ", output.numel(), " elements");
  check_same_type(output, input, "reduce_scatter");
  const auto reduction = reduction_for(input.scalar_type(), op);
  // The output may be a part of the input (FSDP does that); MPI forbids the overlap.
  const auto* first = static_cast<const char*>(input.data_ptr());
  const auto* result = static_cast<const char*>(output.data_ptr());
  const bool overlap = result >= first && result < first + input.nbytes() && output.numel() > 0;
  const auto from = memory_of(work, premultiplied(overlap ? input.clone() : input, op), Use::send).data;
  const auto to = memory_of(work, output, Use::receive).data;
  then_divide(work, output, op, size_);
  const int64_t elements = output.numel(), width = output.element_size();
  return [this, &work, reduction, from, to, elements, width, parts] {
    if (elements <= kPartLimit && same_length(parts)) {
      work.begin(
          "MPI_Ireduce_scatter_block", MPI_Ireduce_scatter_block, from, to, static_cast<int>(elements), reduction.type,
          reduction.op);
      return;
    }
    std::vector<int64_t> lengths(size_, elements);
    std::transform(parts.begin(), parts.end(), lengths.begin(), [](const auto& part) { return part.numel(); });
    if (*std::max_element(lengths.begin(), lengths.end()) <= kPartLimit) {
      const auto kept = at::empty({size_}, at::kInt);
      auto* const counts = static_cast<int*>(kept.data_ptr());
      std::copy(lengths.begin(), lengths.end(), counts);
      work.keep(kept);
      work.begin("MPI_Ireduce_scatter", MPI_Ireduce_scatter, from, to, counts, reduction.type, reduction.op);
      return;
    }
    const char* part = from;
    for (int root = 0; root < size_; ++root) {
      in_parts(lengths[root], [&](int64_t start, int count) {
        work.begin(
            "MPI_Ireduce", MPI_Ireduce, part + start * width, to + start * width, count, reduction.type, reduction.op,
            root);
      });
      part += lengths[root] * width;
    }
  };
}

WorkHandle MPIBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto& tensor = only(tensors, "broadcast");
  check_rank(options.rootRank, "broadcast");
  auto work = make(OpType::BROADCAST, "mpi:broadcast", tensors, tensors, options.timeout);
  const int root = static_cast<int>(options.rootRank);
  const auto buffer = memory_of(*work, tensor, root == rank_ ? Use::send : Use::receive);
  return post(work, options, {call_of(tensor, root), root != rank_}, [&] {
    // In parts, as MPICH 4.0 fails on one element of a large type.
    in_parts(buffer.bytes, [&](int64_t start, int count) {
      work->begin("MPI_Ibcast", MPI_Ibcast, buffer.data + start, count, MPI_BYTE, root);
    });
  });
}

WorkHandle MPIBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto& tensor = only(tensors, "all_reduce");
  if (tensor.layout() != at::kStrided)
    return allreduce_sparse(tensors, options);
  auto work = make(OpType::ALLREDUCE, "mpi:all_reduce", tensors, tensors, options.timeout);
  return post(work, options, call_of(tensor, options.reduceOp), reducing(*work, tensor, options.reduceOp));
}

WorkHandle MPIBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  auto work = make(OpType::ALLREDUCE_COALESCED, "mpi:all_reduce", tensors, tensors, options.timeout);
  Posts posts;
  for (const auto& tensor : tensors)
    posts.push_back(reducing(*work, tensor, options.reduceOp));
  return post_all(work, options, call_of(tensors, options.reduceOp), posts);
}

// The ranks first wait until they know how many elements each has; then they gather indices and values and add them up.
WorkHandle MPIBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor tensor = only(tensors, "all_reduce of a sparse tensor");
  TORCH_CHECK(tensor.layout() == at::kSparse, "torch_mpi: all_reduce takes dense and sparse COO tensors only");
  TORCH_CHECK(options.reduceOp == ReduceOp::SUM, "torch_mpi: sparse tensors can only be summed");
  const c10::NoGradGuard no_grad;
  const auto mine = tensor.coalesce();
  const auto indices = mine.indices().t().contiguous(), values = mine.values().contiguous();  // a row for each element
  auto count = at::empty({1}, at::kLong), counts = at::empty({size_}, at::kLong);
  *count.data_ptr<int64_t>() = mine._nnz();
  c10d::AllgatherOptions gather_options;
  gather_options.timeout = options.timeout;
  _allgather_base(counts, count, gather_options)->wait();
  auto work = make(OpType::_ALLREDUCE_SPARSE, "mpi:sparse_all_reduce", tensors, tensors, options.timeout);
  Tensors all_indices, all_values;
  auto sizes = values.sizes().vec();
  for (int rank = 0; rank < size_; ++rank) {
    sizes[0] = counts.data_ptr<int64_t>()[rank];
    all_values.push_back(at::empty(sizes, values.options()));
    all_indices.push_back(at::empty({sizes[0], indices.size(1)}, indices.options()));
  }
  const Posts posts = {gathering(*work, all_indices, indices), gathering(*work, all_values, values)};
  work->then([tensor, all_indices, all_values]() mutable {
    tensor.copy_(at::sparse_coo_tensor(at::cat(all_indices).t(), at::cat(all_values), tensor.sizes()).coalesce());
  });
  return post_all(work, options, call_of(tensor), posts);
}

WorkHandle MPIBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto& tensor = only(tensors, "reduce");
  const auto& op = options.reduceOp;
  check_rank(options.rootRank, "reduce");
  const int root = static_cast<int>(options.rootRank);
  const bool is_root = root == rank_;
  const auto reduction = reduction_for(tensor.scalar_type(), op);
  auto work = make(OpType::REDUCE, "mpi:reduce", tensors, tensors, options.timeout);
  const auto buffer =
      is_root ? reduction_buffer(*work, tensor, op, size_) : memory_of(*work, premultiplied(tensor, op), Use::send);
  return post(work, options, {call_of(tensor, op, root), is_root}, [&] {
    in_parts(tensor.numel(), [&](int64_t start, int count) {
      char* const part = buffer.data + start * tensor.element_size();
      void* const source = is_root ? MPI_IN_PLACE : part;
      work->begin("MPI_Ireduce", MPI_Ireduce, source, part, count, reduction.type, reduction.op, root);
    });
  });
}

WorkHandle MPIBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  auto work = make(OpType::_ALLGATHER_BASE, "mpi:_all_gather_base", input, {output}, options.timeout);
  return post(work, options, call_of(output), gathering(*work, output, input));
}

WorkHandle MPIBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "torch_mpi: all_gather: as many outputs as inputs are needed");
  auto work = make(OpType::COALESCED, "mpi:all_gather", inputs, outputs, options.timeout);
  Posts posts;
  for (size_t i = 0; i < outputs.size(); ++i)
    posts.push_back(gathering(*work, outputs[i], inputs[i]));
  return post_all(work, options, call_of(outputs), posts);
}

WorkHandle MPIBackend::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto& input = only(inputs, "all_gather");
  TORCH_CHECK(
      outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_), "torch_mpi: all_gather: one list of ",
      size_, " output tensors is needed");
  auto work = make(OpType::ALLGATHER, "mpi:all_gather", inputs, outputs[0], options.timeout);
  return post(work, options, call_of(outputs[0]), gathering(*work, outputs[0], input));
}

WorkHandle MPIBackend::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK(
      outputs.size() == static_cast<size_t>(size_), "torch_mpi: all_gather_coalesced: ", size_,
      " output lists are needed, not ", outputs.size());
  Tensors flat;
  for (const auto& list : outputs) {
    TORCH_CHECK(
        list.size() == inputs.size(), "torch_mpi: all_gather_coalesced: each output list must be as long as the input");
    flat.insert(flat.end(), list.begin(), list.end());
  }
  auto work = make(OpType::ALLGATHER_COALESCED, "mpi:all_gather", inputs, flat, options.timeout);
  Posts posts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const auto& list : outputs)
      parts.push_back(list[i]);
    posts.push_back(gathering(*work, parts, inputs[i]));
  }
  return post_all(work, options, call_of(flat), posts);
}

WorkHandle MPIBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const auto& input = only(inputs, "gather");
  const auto& list = list_of_root(outputs, input, options.rootRank, "gather");
  auto work = make(OpType::GATHER, "mpi:gather", inputs, list, options.timeout);
  const auto from = memory_of(*work, input, Use::send);
  char* const to = list.empty() ? nullptr : memory_of(*work, list, Use::receive).data;
  const int root = static_cast<int>(options.rootRank);
  return post(work, options, {call_of(input, root), !list.empty()}, [&] {
    const Span span(from.bytes);
    work->begin("MPI_Igather", MPI_Igather, from.data, span.count, span.type, to, span.count, span.type, root);
  });
}

WorkHandle MPIBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const auto& output = only(outputs, "scatter");
  const auto& list = list_of_root(inputs, output, options.rootRank, "scatter");
  auto work = make(OpType::SCATTER, "mpi:scatter", list.empty() ? outputs : list, outputs, options.timeout);
  const auto to = memory_of(*work, output, Use::receive);
  char* const from = list.empty() ? nullptr : memory_of(*work, list, Use::send).data;
  const int root = static_cast<int>(options.rootRank);
  return post(work, options, {call_of(output, root), list.empty()}, [&] {
    const Span span(to.bytes);
    work->begin("MPI_Iscatter", MPI_Iscatter, from, span.count, span.type, to.data, span.count, span.type, root);
  });
}

WorkHandle MPIBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  auto work = make(OpType::_REDUCE_SCATTER_BASE, "mpi:_reduce_scatter_base", input, {output}, options.timeout);
  const auto call = call_of(input, options.reduceOp);
  return post(work, options, call, reduce_scattering(*work, output, input, options.reduceOp));
}

WorkHandle MPIBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "torch_mpi: reduce_scatter: as many outputs as inputs are needed");
  auto work = make(OpType::COALESCED, "mpi:reduce_scatter", inputs, outputs, options.timeout);
  Posts posts;
  for (size_t i = 0; i < outputs.size(); ++i)
    posts.push_back(reduce_scattering(*work, outputs[i], inputs[i], options.reduceOp));
  return post_all(work, options, call_of(inputs, options.reduceOp), posts);
}

WorkHandle MPIBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  const auto& output = only(outputs, "reduce_scatter");
  TORCH_CHECK(
      inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_), "torch_mpi: reduce_scatter: one list of ",
      size_, " input tensors is needed");
  auto& parts = inputs[0];
  check_same_type(parts, output, "reduce_scatter");
  TORCH_CHECK(
      parts[rank_].numel() == output.numel(), "torch_mpi: reduce_scatter: the output has ",
      output.numel(), " elements, but the input for this rank ", parts[rank_].numel());
  auto work = make(OpType::REDUCE_SCATTER, "mpi:reduce_scatter", parts, outputs, options.timeout);
  // A copy in any case: the output is often one of the inputs, and MPI forbids the overlap.
  const at::Tensor source = concatenated(parts);
  const auto call = call_of(parts, options.reduceOp);
  return post(work, options, call, reduce_scattering(*work, output, source, options.reduceOp, parts));
}

WorkHandle MPIBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  const bool even = output_splits.empty() && input_splits.empty();
  check_same_type(output, input, "all_to_all");
  TORCH_CHECK(
      !even || input.numel() == output.numel(), "torch_mpi: all_to_all: input and output must be equally large");
  auto work = make(OpType::ALLTOALL_BASE, "mpi:all_to_all", input, {output}, options.timeout);
  const auto pieces = [this](const at::Tensor& tensor, const Piece& buffer, const std::vector<int64_t>& splits) {
    c10d::checkSplitSizes(splits, tensor, size_);
    const int64_t rows = tensor.size(0);
    const int64_t row = rows == 0 ? 0 : buffer.bytes / rows;
    std::vector<Piece> made;
    char* data = buffer.data;
    for (int i = 0; i < size_; ++i) {
      const int64_t bytes = (splits.empty() ? rows / size_ : splits[i]) * row;
      made.push_back({data, bytes});
      data += bytes;
    }
    return made;
  };
  const auto sends = pieces(input, memory_of(*work, input, Use::send), input_splits);
  const auto receives = pieces(output, memory_of(*work, output, Use::receive), output_splits);
  return post(work, options, agreement_of(input, rank_, sends, receives), [&] {
    if (!even)
      return exchange(*work, rank_, sends, receives);
    const Span span(sends[0].bytes);
    work->begin(
        "MPI_Ialltoall", MPI_Ialltoall, sends[0].data, span.count, span.type, receives[0].data, span.count, span.type);
  });
}

WorkHandle MPIBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  TORCH_CHECK(
      outputs.size() == static_cast<size_t>(size_) && inputs.size() == static_cast<size_t>(size_),
      "torch_mpi: all_to_all: ", size_, " input and output tensors are needed");
  check_same_type(outputs, inputs[0], "all_to_all");
  check_same_type(inputs, inputs[0], "all_to_all");
  auto work = make(OpType::ALLTOALL, "mpi:all_to_all", inputs, outputs, options.timeout);
  std::vector<Piece> sends, receives;
  for (int i = 0; i < size_; ++i) {
    sends.push_back(memory_of(*work, inputs[i], Use::send));
    receives.push_back(memory_of(*work, outputs[i], Use::receive));
  }
  const auto agreement = agreement_of(inputs[0], rank_, sends, receives);
  return post(work, options, agreement, [&] { exchange(*work, rank_, sends, receives); });
}

WorkHandle MPIBackend::send(Tensors& tensors, int rank, int tag) {
  const auto& tensor = only(tensors, "send");
  check_rank(rank, "send");
  check_tag(tag);
  auto work = make(OpType::SEND, "mpi:send", tensors, {}, timeout_);
  work->set_peer(rank);
  const auto from = memory_of(*work, tensor, Use::send);
  // Nothing distinguishes an isend from a send, which is waited for at once: the progress thread is not woken for
  // messages, but finds what nobody waits for within milliseconds.
  return Runtime::get().post(work, /*asynchronous=*/false, [&] {
    const Span span(from.bytes);
    work->begin("MPI_Isend", MPI_Isend, from.data, span.count, span.type, rank, tag);
  });
}

WorkHandle MPIBackend::recv(Tensors& tensors, int rank, int tag) {
  const auto& tensor = only(tensors, "recv");
  const bool any = rank == MPI_ANY_SOURCE;
  if (!any)
    check_rank(rank, "recv");
  check_tag(tag);
  auto work = make(
      any ? OpType::RECVANYSOURCE : OpType::RECV, any ? "mpi:recvAnySource" : "mpi:recv", tensors, tensors, timeout_);
  work->set_peer(rank);
  const auto to = memory_of(*work, tensor, Use::receive);
  return Runtime::get().post(work, /*asynchronous=*/false, [&] {
    const Span span(to.bytes);
    work->begin("MPI_Irecv", MPI_Irecv, to.data, span.count, span.type, rank, tag);
  });
}

WorkHandle MPIBackend::recvAnysource(Tensors& tensors, int tag) {
  return recv(tensors, MPI_ANY_SOURCE, tag);
}

WorkHandle MPIBackend::barrier(const c10d::BarrierOptions& options) {
  auto work = make(OpType::BARRIER, "mpi:barrier", {}, {}, options.timeout);
  return post(work, options, call_of(TensorList()), [&] { work->begin("MPI_Ibarrier", MPI_Ibarrier); });
}

// Every rank reports to rank 0, which answers when all have come, or names those that have not. The texts are gloo's.
void MPIBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  communicator_->throw_if_failed();
  Runtime::get().check_usable();
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? timeout_ : options.timeout;
  const auto deadline = Clock::now() + timeout;
  const ControlMessages control{communicator_->handle, Runtime::get().tag(Runtime::barrier), ++monitored_barriers_};
  const auto receive = [&](const std::vector<int>& ranks) {
    auto values = control.receive(ranks, deadline);
    if (values.size() < ranks.size())
      communicator_->leftovers = true;
    return values;
  };
  if (rank_ != 0) {
    control.send(0, true);
    const auto answer = receive({0});
    TORCH_CHECK(
        !answer.empty() && answer.at(0), "[Rank ", rank_, "]: Rank ", rank_,
        " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please "
        "check rank 0 logs for faulty rank.");
    return;
  }
  std::vector<int> others(size_ - 1), missing;
  std::iota(others.begin(), others.end(), 1);
  const auto reports = receive(others);
  for (int rank : others)
    if (!reports.count(rank))
      missing.push_back(rank);
  for (int rank : others)
    control.send(rank, missing.empty());
  if (missing.empty())
    return;
  TORCH_CHECK(
      timeout > kNoTimeout, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ", timeout.count(),
      " ms. No ranks successfully processed in monitoredBarrier.");
  if (!wait_all_ranks)
    missing.resize(1);
  TORCH_CHECK(
      false, "[Rank 0]: Rank", missing.size() == 1 ? " " : "s ", c10::Join(", ", missing),
      " failed to pass monitoredBarrier in ", timeout.count(), " ms");
}

}  // namespace torch_mpi
