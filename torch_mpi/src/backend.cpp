#include "backend.h"

#include <cstring>
#include <numeric>

#include "memory.h"
#include "reduction.h"

namespace torch_mpi {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using WorkHandle = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// Nothing tells an isend from a send, which is waited for at once: the progress thread is not woken for either, but
// finds what nobody waits for within milliseconds.
constexpr bool kMessage = false;
// A reduction of more elements, a broadcast of more bytes, is several ones, on all ranks alike.
constexpr int64_t kPartLimit = int64_t(1) << 30;

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

void check_same_type(const Tensors& tensors, const at::Tensor& model, const char* what) {
  for (const auto& tensor : tensors) {
    TORCH_CHECK(
        tensor.scalar_type() == model.scalar_type(), "torch_mpi: ", what, ": tensors of one type are needed, but there are ",
        model.scalar_type(), " and ", tensor.scalar_type());
    TORCH_CHECK(
        tensor.device().type() == model.device().type(), "torch_mpi: ", what, ": tensors on one device are needed");
  }
}

bool same_length(const Tensors& tensors) {
  for (const auto& tensor : tensors)
    if (tensor.numel() != tensors.front().numel())
      return false;
  return true;
}

// Works started between startCoalescing() and endCoalescing().
class Works : public c10d::Work {
 public:
  Works(int rank, std::vector<WorkHandle> works)
      : c10d::Work(rank, OpType::COALESCED), works_(std::move(works)) {}
  bool isCompleted() override {
    bool all = true;
    for (auto& work : works_)
      all = work->isCompleted() && all;
    return all;
  }
  bool isSuccess() const override {
    for (auto& work : works_)
      if (!work->isSuccess())
        return false;
    return true;
  }
  bool wait(Milliseconds timeout = kNoTimeout) override {
    for (auto& work : works_)
      work->wait(timeout);
    return true;
  }
  void synchronize() override {
    wait();
  }
  Tensors result() override {
    Tensors all;
    for (auto& work : works_)
      for (auto& tensor : work->result())
        all.push_back(tensor);
    return all;
  }

 private:
  std::vector<WorkHandle> works_;
};

bool is_float8(at::ScalarType type) {
  return at::isFloatingType(type) && c10::elementSize(type) == 1;
}

#if TORCH_MPI_HAS_WIDE_UNSIGNED
// For types that torch stores but does not compute with.
template <class T>
void divide_elements(at::Tensor& tensor, int by) {
  const at::Tensor copy = tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true).contiguous();
  T* elements = static_cast<T*>(copy.data_ptr());
  for (int64_t i = 0; i < copy.numel(); ++i)
    elements[i] = static_cast<T>(elements[i] / static_cast<T>(by));
  tensor.copy_(copy);
}
#endif

void divide(at::Tensor tensor, int by) {
#if TORCH_MPI_HAS_WIDE_UNSIGNED
  switch (tensor.scalar_type()) {
    case at::kUInt16:
      return divide_elements<uint16_t>(tensor, by);
    case at::kUInt32:
      return divide_elements<uint32_t>(tensor, by);
    case at::kUInt64:
      return divide_elements<uint64_t>(tensor, by);
    default:
      break;
  }
#endif
  if (is_float8(tensor.scalar_type()))
    tensor.copy_(tensor.to(at::kFloat).div_(by));
  else if (tensor.scalar_type() == at::kComplexHalf)
    tensor.copy_(tensor.to(at::kComplexFloat).div_(by));
  else if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false))
    tensor.div_(by, "trunc");
  else
    tensor.div_(by);
}

at::Tensor premultiplied(const at::Tensor& tensor, const ReduceOp& op) {
  c10::NoGradGuard no_grad;
  const auto* supplement = dynamic_cast<PremultiplySupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement, "torch_mpi: ReduceOp.PREMUL_SUM needs its factor");
  const auto scaled = supplement->tensor_factor.defined() ? tensor.mul(supplement->tensor_factor.to(tensor.device()))
                                                          : tensor.mul(supplement->double_factor);
  return scaled.to(tensor.scalar_type());
}

void then_divide(MPIWork& work, const at::Tensor& tensor, const ReduceOp& op, int by) {
  if (op == ReduceOp::AVG)
    work.then([tensor, by] { divide(tensor, by); });
}

}  // namespace

// ------------------------------------------------------------------------------------------------- the group

MPIBackend::MPIBackend(std::shared_ptr<Communicator> communicator, std::vector<int> world_ranks, Milliseconds timeout)
    : Backend(communicator->rank(), communicator->size()),
      communicator_(std::move(communicator)),
      world_ranks_(std::move(world_ranks)),
      timeout_(timeout) {
  init();
}

c10::intrusive_ptr<MPIBackend> MPIBackend::create(std::vector<int> ranks, Milliseconds timeout) {
  auto& runtime = Runtime::get();
  runtime.start(timeout);
  MPI_Comm made = MPI_COMM_NULL;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(runtime.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    made = runtime.duplicate_world(timeout);
  } else {
    made = runtime.create(ranks, timeout);
  }
  return c10::make_intrusive<MPIBackend>(std::make_shared<Communicator>(made), std::move(ranks), timeout);
}

bool MPIBackend::supportsSplitting() const {
  return true;
}

c10::intrusive_ptr<c10d::Backend> MPIBackend::split(
    const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks, const c10::intrusive_ptr<Options>& options) {
  std::vector<int> world_ranks;
  bool member = false;
  for (int rank : ranks) {
    check_rank(rank, "split");
    world_ranks.push_back(world_ranks_[static_cast<size_t>(rank)]);
    member = member || rank == rank_;
  }
  if (!member)
    return nullptr;
  return create(world_ranks, options ? options->timeout : timeout_);
}

c10::intrusive_ptr<c10d::Backend::Options> MPIBackend::getBackendOptions() {
  return c10::make_intrusive<Options>("mpi", timeout_);
}

void MPIBackend::setTimeout(Milliseconds timeout) {
  timeout_ = timeout;
}

void MPIBackend::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

WorkHandle MPIBackend::endCoalescing() {
  coalescing_ = false;
  return c10::make_intrusive<Works>(rank_, std::move(coalesced_));
}

void MPIBackend::setSequenceNumberForGroup() {}

uint64_t MPIBackend::getSequenceNumberForGroup() {
  return sequence_.load();
}

void MPIBackend::shutdown() {}

Milliseconds MPIBackend::timeout_or_default(Milliseconds asked) const {
  return asked > kNoTimeout ? asked : timeout_;
}

void MPIBackend::check_rank(int64_t rank, const char* what) const {
  TORCH_CHECK(rank >= 0 && rank < size_, "torch_mpi: ", what, ": there is no rank ", rank, " in this group of ", size_);
}

void MPIBackend::check_tag(int tag) const {
  TORCH_CHECK(
      tag >= 0 && tag <= communicator_->highest_user_tag(), "torch_mpi: the tag must be from 0 to ",
      communicator_->highest_user_tag(), ", not ", tag);
}

WorkPointer MPIBackend::make(
    OpType type, const char* title, at::ArrayRef<at::Tensor> inputs, Tensors outputs, Milliseconds timeout) {
  communicator_->throw_if_failed();
  Runtime::get().check_usable();
  const auto number = sequence_.fetch_add(1, std::memory_order_relaxed);
  if (C10_UNLIKELY(c10d::debug_level() == c10d::DebugLevel::Detail))
    compare_calls(number, type, inputs, timeout);
  OptionalTensors profiled;
  if (C10_UNLIKELY(at::hasCallbacks()))
    profiled = inputs.vec();
  return c10::make_intrusive<MPIWork>(
      communicator_, type, title, profiled, std::move(outputs), timeout_or_default(timeout));
}

namespace {

// What TORCH_DISTRIBUTED_DEBUG=DETAIL has the ranks compare before a collective; as many of the same type each.
struct Call {
  int64_t number, operation, type = -1, elements = -1;
  std::string text() const {
    return c10::str(
        "CollectiveFingerPrint(SequenceNumber=", number, ", OpType=", c10d::opTypeToString(static_cast<OpType>(operation)),
        type < 0 ? "" : c10::str(", TensorDtypes=", static_cast<at::ScalarType>(type)),
        elements < 0 ? "" : c10::str(", Elements=", elements), ")");
  }
  bool operator!=(const Call& other) const {
    return std::memcmp(this, &other, sizeof(Call)) != 0;
  }
};

// Do all ranks give tensors of the same length?
bool alike(OpType type) {
  return type != OpType::ALLGATHER && type != OpType::SCATTER && type != OpType::ALLTOALL &&
      type != OpType::ALLTOALL_BASE;
}

}  // namespace

// Throws what gloo's users know from torch's own comparison, which needs a group of gloo.
void MPIBackend::compare_calls(uint64_t number, OpType type, at::ArrayRef<at::Tensor> inputs, Milliseconds timeout) {
  auto work = c10::make_intrusive<MPIWork>(
      communicator_, type, "mpi:comparing calls", OptionalTensors(), Tensors(), timeout_or_default(timeout));
  if (work->is_message())
    return;
  Call mine{static_cast<int64_t>(number), static_cast<int64_t>(type)};
  if (!inputs.empty())
    mine.type = static_cast<int64_t>(inputs[0].scalar_type());
  if (alike(type))
    mine.elements = std::accumulate(
        inputs.begin(), inputs.end(), int64_t(0), [](int64_t sum, const auto& one) { return sum + one.numel(); });
  auto all = std::make_shared<std::vector<Call>>(static_cast<size_t>(size_), mine);
  work->keep(std::shared_ptr<void>(all));
  Runtime::get().launch(work, false, [&] {
    check_mpi(
        MPI_Iallgather(
            MPI_IN_PLACE, sizeof(Call), MPI_BYTE, all->data(), sizeof(Call), MPI_BYTE, comm(), work->add_request()),
        "MPI_Iallgather");
  });
  work->wait();
  for (int rank = 0; rank < size_; ++rank)
    TORCH_CHECK(
        !(mine != (*all)[static_cast<size_t>(rank)]), "Detected mismatch between collectives on ranks. Rank ", rank_,
        " is running collective: ", mine.text(), ", but Rank ", rank, " is running collective: ",
        (*all)[static_cast<size_t>(rank)].text());
}

template <class Post>
WorkHandle MPIBackend::launch(WorkPointer work, bool asynchronous, const Post& post) {
  Runtime::get().launch(work, asynchronous, post);
  if (C10_UNLIKELY(coalescing_))
    coalesced_.push_back(work);
  return work;
}

// ------------------------------------------------------------------------------- what is posted under the lock

auto MPIBackend::reducing(MPIWork& work, const at::Tensor& tensor, const ReduceOp& op) {
  const auto reduction = reduction_for(tensor.scalar_type(), op);
  const auto buffer = exchangeable(work, tensor);
  if (C10_UNLIKELY(op == ReduceOp::PREMUL_SUM)) {
    c10::NoGradGuard no_grad;
    at::Tensor(buffer).copy_(premultiplied(buffer, op));
    await_stream(buffer.device());
  }
  then_divide(work, tensor, op, size_);
  char* data = static_cast<char*>(buffer.data_ptr());
  const int64_t elements = buffer.numel(), width = buffer.element_size();
  return [this, &work, reduction, data, elements, width] {
    choose_all_reduce(elements * width, size_);
    int64_t start = 0;
    do {
      const int count = static_cast<int>(std::min(kPartLimit, elements - start));
      check_mpi(
          MPI_Iallreduce(
              MPI_IN_PLACE, data + start * width, count, reduction.type, reduction.op, comm(), work.add_request()),
          "MPI_Iallreduce");
      start += count;
    } while (start < elements);
  };
}

auto MPIBackend::gathering(MPIWork& work, const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK(
      output.numel() == input.numel() * size_, "torch_mpi: all_gather: the output must be ", size_,
      " times as large as the input, but they have ", output.numel(), " and ", input.numel(), " elements");
  const auto from = readable(work, input), to = writable(work, output);
  const int64_t bytes = static_cast<int64_t>(from.nbytes());
  char* target = static_cast<char*>(to.data_ptr());
  const bool in_place = from.data_ptr() == target + bytes * rank_ && bytes > 0;
  return [this, &work, from = from.data_ptr(), to = target, bytes, in_place] {
    const Span span(bytes);
    if (gathers_by_messages(size_, bytes)) {
      const int tag = communicator_->gather_tag();
      for (int other = 0; other < size_; ++other)
        if (other != rank_)
          check_mpi(
              MPI_Irecv(to + bytes * other, span.count, span.type, other, tag, comm(), work.add_request()),
              "MPI_Irecv");
      for (int other = 0; other < size_; ++other)
        if (other != rank_)
          check_mpi(MPI_Isend(from, span.count, span.type, other, tag, comm(), work.add_request()), "MPI_Isend");
      if (!in_place && bytes > 0)
        std::memcpy(to + bytes * rank_, from, static_cast<size_t>(bytes));
      return;
    }
    check_mpi(
        MPI_Iallgather(
            in_place ? MPI_IN_PLACE : from, span.count, span.type, to, span.count, span.type, comm(),
            work.add_request()),
        "MPI_Iallgather");
  };
}

std::function<void()> MPIBackend::gathering(MPIWork& work, Tensors& outputs, const at::Tensor& input) {
  TORCH_CHECK(
      outputs.size() == static_cast<size_t>(size_), "torch_mpi: all_gather: ", size_, " output tensors are needed, not ",
      outputs.size());
  check_same_type(outputs, input, "all_gather");
  TORCH_CHECK(
      outputs[static_cast<size_t>(rank_)].numel() == input.numel(), "torch_mpi: all_gather: the input has ",
      input.numel(), " elements, but the output for this rank ", outputs[static_cast<size_t>(rank_)].numel());
  if (same_length(outputs))
    return gathering(work, writable(work, outputs), input);
  const auto from = readable(work, input);
  std::vector<Piece> to(outputs.size(), Piece{from.data_ptr(), static_cast<int64_t>(from.nbytes())}), pieces;
  for (auto& output : outputs) {
    const auto landing = writable(work, output);
    pieces.push_back({landing.data_ptr(), static_cast<int64_t>(landing.nbytes())});
  }
  return [this, &work, to, pieces] { exchange(work, comm(), to, pieces); };
}

std::function<void()> MPIBackend::reduce_scattering(
    MPIWork& work, const at::Tensor& output, const at::Tensor& input, const ReduceOp& op) {
  TORCH_CHECK(
      input.numel() == output.numel() * size_, "torch_mpi: reduce_scatter: the input must be ", size_,
      " times as large as the output, but they have ", input.numel(), " and ", output.numel(), " elements");
  check_same_type({output}, input, "reduce_scatter");
  const auto reduction = reduction_for(input.scalar_type(), op);
  // The output may be a part of the input (FSDP does that); MPI forbids the overlap.
  const auto* first = static_cast<const char*>(input.data_ptr());
  const auto* result = static_cast<const char*>(output.data_ptr());
  const bool overlap = result >= first && result < first + input.nbytes() && output.numel() > 0;
  at::Tensor source = op == ReduceOp::PREMUL_SUM ? premultiplied(input, op) : overlap ? input.clone() : input;
  const auto from = readable(work, source), to = writable(work, output);
  then_divide(work, output, op, size_);
  const int64_t elements = to.numel(), stride = static_cast<int64_t>(to.nbytes());
  return [this, &work, reduction, from = static_cast<char*>(from.data_ptr()), to = static_cast<char*>(to.data_ptr()),
          elements, stride] {
    if (elements <= kPartLimit) {
      check_mpi(
          MPI_Ireduce_scatter_block(
              from, to, static_cast<int>(elements), reduction.type, reduction.op, comm(), work.add_request()),
          "MPI_Ireduce_scatter_block");
      return;
    }
    for (int root = 0; root < size_; ++root)
      for (int64_t start = 0; start < elements; start += kPartLimit) {
        const int64_t offset = start * (stride / elements);
        check_mpi(
            MPI_Ireduce(
                from + root * stride + offset, to + offset,
                static_cast<int>(std::min(kPartLimit, elements - start)), reduction.type, reduction.op, root,
                comm(), work.add_request()),
            "MPI_Ireduce");
      }
  };
}

// ----------------------------------------------------------------------------------------------- collectives

WorkHandle MPIBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto& tensor = only(tensors, "broadcast");
  check_rank(options.rootRank, "broadcast");
  auto work = make(OpType::BROADCAST, "mpi:broadcast", tensors, tensors, options.timeout);
  const int root = static_cast<int>(options.rootRank);
  const auto buffer = root == rank_ ? readable(*work, tensor) : writable(*work, tensor);
  char* data = static_cast<char*>(buffer.data_ptr());
  const int64_t bytes = static_cast<int64_t>(buffer.nbytes());
  return launch(work, asked_async(options, 0), [&] {
    int64_t start = 0;
    do {  // in parts, as MPICH 4.0 fails on one element of a large type
      const int count = static_cast<int>(std::min(kPartLimit, bytes - start));
      check_mpi(MPI_Ibcast(data + start, count, MPI_BYTE, root, comm(), work->add_request()), "MPI_Ibcast");
      start += count;
    } while (start < bytes);
  });
}

WorkHandle MPIBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto& tensor = only(tensors, "all_reduce");
  if (tensor.layout() != at::kStrided)
    return allreduce_sparse(tensors, options);
  auto work = make(OpType::ALLREDUCE, "mpi:all_reduce", tensors, tensors, options.timeout);
  return launch(work, asked_async(options, 0), reducing(*work, tensor, options.reduceOp));
}

WorkHandle MPIBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  auto work = make(OpType::ALLREDUCE_COALESCED, "mpi:all_reduce", tensors, tensors, options.timeout);
  std::vector<std::function<void()>> posts;
  for (const auto& tensor : tensors)
    posts.push_back(reducing(*work, tensor, options.reduceOp));
  return launch(work, asked_async(options, 0), [&] {
    for (auto& post : posts)
      post();
  });
}

// The ranks first learn how many elements each has, then gather indices and values, and each adds them up.
WorkHandle MPIBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor tensor = only(tensors, "all_reduce of a sparse tensor");
  TORCH_CHECK(tensor.layout() == at::kSparse, "torch_mpi: all_reduce takes dense and sparse COO tensors only");
  TORCH_CHECK(options.reduceOp == ReduceOp::SUM, "torch_mpi: sparse tensors can only be summed");
  auto work = make(OpType::_ALLREDUCE_SPARSE, "mpi:sparse_all_reduce", tensors, tensors, options.timeout);
  struct State {
    at::Tensor indices, values, all_indices, all_values;
    std::vector<int64_t> counts;
    std::vector<int> index_counts, index_starts, value_counts, value_starts;
    int64_t total = 0;
  };
  auto state = std::make_shared<State>();
  work->keep(std::shared_ptr<void>(state));
  c10::NoGradGuard no_grad;
  const auto coalesced = tensor.coalesce();
  state->indices = readable(*work, coalesced.indices().t().contiguous());  // one row for each element
  state->values = readable(*work, coalesced.values().contiguous());
  state->counts.resize(static_cast<size_t>(size_), 0);
  state->counts[static_cast<size_t>(rank_)] = coalesced._nnz();
  MPIWork* pointer = work.get();
  work->next([this, pointer, state] {
    for (int64_t count : state->counts)
      state->total += count;
    auto sizes = state->values.sizes().vec();
    const int64_t row = std::accumulate(sizes.begin() + 1, sizes.end(), int64_t(1), std::multiplies<int64_t>()) *
        state->values.element_size();
    const int64_t index_row = state->indices.size(1) * static_cast<int64_t>(sizeof(int64_t));
    TORCH_CHECK(
        state->total * std::max(row, index_row) <= kIntLimit, "torch_mpi: the sparse tensors of all ranks have ",
        state->total, " elements together, which is too many");
    sizes[0] = state->total;
    state->all_values = at::empty(sizes, state->values.options());
    state->all_indices = at::empty({state->total, state->indices.size(1)}, state->indices.options());
    int start = 0;
    for (int64_t count : state->counts) {
      state->index_counts.push_back(static_cast<int>(count * index_row));
      state->value_counts.push_back(static_cast<int>(count * row));
      state->index_starts.push_back(static_cast<int>(start * index_row));
      state->value_starts.push_back(static_cast<int>(start * row));
      start += static_cast<int>(count);
    }
    const auto rank = static_cast<size_t>(rank_);
    check_mpi(
        MPI_Iallgatherv(
            state->indices.data_ptr(), state->index_counts[rank], MPI_BYTE, state->all_indices.data_ptr(),
            state->index_counts.data(), state->index_starts.data(), MPI_BYTE, comm(), pointer->add_request()),
        "MPI_Iallgatherv");
    check_mpi(
        MPI_Iallgatherv(
            state->values.data_ptr(), state->value_counts[rank], MPI_BYTE, state->all_values.data_ptr(),
            state->value_counts.data(), state->value_starts.data(), MPI_BYTE, comm(), pointer->add_request()),
        "MPI_Iallgatherv");
  });
  work->then([tensor, state]() mutable {
    const auto sum = at::sparse_coo_tensor(
        state->all_indices.t().to(tensor.device()), state->all_values.to(tensor.device()), tensor.sizes());
    tensor.copy_(sum.coalesce());
  });
  return launch(work, asked_async(options, 0), [&] {
    check_mpi(
        MPI_Iallgather(
            MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, state->counts.data(), 1, MPI_INT64_T, comm(), work->add_request()),
        "MPI_Iallgather");
  });
}

WorkHandle MPIBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto& tensor = only(tensors, "reduce");
  check_rank(options.rootRank, "reduce");
  const int root = static_cast<int>(options.rootRank);
  const auto reduction = reduction_for(tensor.scalar_type(), options.reduceOp);
  auto work = make(OpType::REDUCE, "mpi:reduce", tensors, tensors, options.timeout);
  at::Tensor source = options.reduceOp == ReduceOp::PREMUL_SUM ? premultiplied(tensor, options.reduceOp) : tensor;
  at::Tensor buffer;
  if (root == rank_) {
    buffer = exchangeable(*work, tensor);
    if (!source.is_same(tensor)) {
      buffer.copy_(source);
      await_stream(buffer.device());
    }
    then_divide(*work, tensor, options.reduceOp, size_);
  } else {
    buffer = readable(*work, source);
  }
  char* data = static_cast<char*>(buffer.data_ptr());
  const int64_t elements = buffer.numel(), width = buffer.element_size();
  return launch(work, asked_async(options, 0), [&] {
    int64_t start = 0;
    do {
      const int count = static_cast<int>(std::min(kPartLimit, elements - start));
      char* part = data + start * width;
      check_mpi(
          MPI_Ireduce(
              root == rank_ ? MPI_IN_PLACE : part, root == rank_ ? part : nullptr, count, reduction.type, reduction.op,
              root, comm(), work->add_request()),
          "MPI_Ireduce");
      start += count;
    } while (start < elements);
  });
}

WorkHandle MPIBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  check_same_type({output}, input, "all_gather");
  auto work = make(OpType::_ALLGATHER_BASE, "mpi:_all_gather_base", input, {output}, options.timeout);
  return launch(work, asked_async(options, 0), gathering(*work, output, input));
}

WorkHandle MPIBackend::all_gather_single(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  return _allgather_base(output, input, options);
}

WorkHandle MPIBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "torch_mpi: all_gather: as many outputs as inputs are needed");
  auto work = make(OpType::COALESCED, "mpi:all_gather", inputs, outputs, options.timeout);
  std::vector<std::function<void()>> posts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_same_type({outputs[i]}, inputs[i], "all_gather");
    posts.push_back(gathering(*work, outputs[i], inputs[i]));
  }
  return launch(work, asked_async(options, 0), [&] {
    for (auto& post : posts)
      post();
  });
}

WorkHandle MPIBackend::all_gather_single_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkHandle MPIBackend::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto& input = only(inputs, "all_gather");
  TORCH_CHECK(outputs.size() == 1, "torch_mpi: all_gather takes one list of output tensors");
  auto work = make(OpType::ALLGATHER, "mpi:all_gather", inputs, outputs[0], options.timeout);
  return launch(work, asked_async(options, 0), gathering(*work, outputs[0], input));
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
  std::vector<std::function<void()>> posts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const auto& list : outputs)
      parts.push_back(list[i]);
    posts.push_back(gathering(*work, parts, inputs[i]));
  }
  return launch(work, asked_async(options, 0), [&] {
    for (auto& post : posts)
      post();
  });
}

WorkHandle MPIBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const auto& input = only(inputs, "gather");
  check_rank(options.rootRank, "gather");
  const bool is_root = options.rootRank == rank_;
  TORCH_CHECK(
      is_root ? outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_) : outputs.empty(),
      "torch_mpi: gather: one list of ", size_, " output tensors is needed on rank ", options.rootRank,
      ", and none on the others");
  auto work = make(OpType::GATHER, "mpi:gather", inputs, is_root ? outputs[0] : Tensors{}, options.timeout);
  const auto from = readable(*work, input);
  at::Tensor to;
  if (is_root) {
    check_same_type(outputs[0], input, "gather");
    for (const auto& output : outputs[0])
      TORCH_CHECK(
          output.numel() == input.numel(), "torch_mpi: gather: all tensors must have the same number of elements");
    to = writable(*work, outputs[0]);
  }
  return launch(work, asked_async(options, 0), [&] {
    const Span span(static_cast<int64_t>(from.nbytes()));
    check_mpi(
        MPI_Igather(
            from.data_ptr(), span.count, span.type, is_root ? to.data_ptr() : nullptr, span.count, span.type,
            static_cast<int>(options.rootRank), comm(), work->add_request()),
        "MPI_Igather");
  });
}

WorkHandle MPIBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  Tensors inputs{input};
  std::vector<Tensors> outputs;
  if (options.rootRank == rank_) {
    TORCH_CHECK(
        output.is_contiguous() && output.numel() == input.numel() * size_,
        "torch_mpi: gather: a contiguous output ", size_, " times as large as the input is needed");
    outputs.push_back(output.view({size_, -1}).unbind(0));
  }
  return gather(outputs, inputs, options);
}

WorkHandle MPIBackend::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  return gather_into_tensor(output, input, options);
}

WorkHandle MPIBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const auto& output = only(outputs, "scatter");
  check_rank(options.rootRank, "scatter");
  const bool is_root = options.rootRank == rank_;
  TORCH_CHECK(
      is_root ? inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_) : inputs.empty(),
      "torch_mpi: scatter: one list of ", size_, " input tensors is needed on rank ", options.rootRank,
      ", and none on the others");
  auto work = make(OpType::SCATTER, "mpi:scatter", is_root ? inputs[0] : outputs, outputs, options.timeout);
  const auto to = writable(*work, output);
  at::Tensor from;
  if (is_root) {
    check_same_type(inputs[0], output, "scatter");
    for (const auto& input : inputs[0])
      TORCH_CHECK(
          input.numel() == output.numel(), "torch_mpi: scatter: all tensors must have the same number of elements");
    from = readable(*work, inputs[0]);
  }
  return launch(work, asked_async(options, 0), [&] {
    const Span span(static_cast<int64_t>(to.nbytes()));
    check_mpi(
        MPI_Iscatter(
            is_root ? from.data_ptr() : nullptr, span.count, span.type, to.data_ptr(), span.count, span.type,
            static_cast<int>(options.rootRank), comm(), work->add_request()),
        "MPI_Iscatter");
  });
}

WorkHandle MPIBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  auto work = make(OpType::_REDUCE_SCATTER_BASE, "mpi:_reduce_scatter_base", input, {output}, options.timeout);
  return launch(work, asked_async(options, 0), reduce_scattering(*work, output, input, options.reduceOp));
}

WorkHandle MPIBackend::reduce_scatter_single(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return _reduce_scatter_base(output, input, options);
}

WorkHandle MPIBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "torch_mpi: reduce_scatter: as many outputs as inputs are needed");
  auto work = make(OpType::COALESCED, "mpi:reduce_scatter", inputs, outputs, options.timeout);
  std::vector<std::function<void()>> posts;
  for (size_t i = 0; i < outputs.size(); ++i)
    posts.push_back(reduce_scattering(*work, outputs[i], inputs[i], options.reduceOp));
  return launch(work, asked_async(options, 0), [&] {
    for (auto& post : posts)
      post();
  });
}

WorkHandle MPIBackend::reduce_scatter_single_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
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
      parts[static_cast<size_t>(rank_)].numel() == output.numel(), "torch_mpi: reduce_scatter: the output has ",
      output.numel(), " elements, but the input for this rank ", parts[static_cast<size_t>(rank_)].numel());
  const auto& op = options.reduceOp;
  const auto reduction = reduction_for(output.scalar_type(), op);
  auto work = make(OpType::REDUCE_SCATTER, "mpi:reduce_scatter", parts, outputs, options.timeout);
  // A copy in any case: the output is often one of the inputs, and MPI forbids the overlap.
  at::Tensor source = joined(parts);
  if (same_length(parts))
    return launch(work, asked_async(options, 0), reduce_scattering(*work, output, source, op));
  auto counts = std::make_shared<std::vector<int>>();
  work->keep(std::shared_ptr<void>(counts));
  for (const auto& part : parts) {
    TORCH_CHECK(part.numel() <= kIntLimit, "torch_mpi: reduce_scatter: an uneven part has too many elements");
    counts->push_back(static_cast<int>(part.numel()));
  }
  if (op == ReduceOp::PREMUL_SUM)
    source = premultiplied(source, op);
  const auto from = readable(*work, source), to = writable(*work, output);
  then_divide(*work, output, op, size_);
  return launch(work, asked_async(options, 0), [&] {
    check_mpi(
        MPI_Ireduce_scatter(
            from.data_ptr(), to.data_ptr(), counts->data(), reduction.type, reduction.op, comm(), work->add_request()),
        "MPI_Ireduce_scatter");
  });
}

WorkHandle MPIBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  check_same_type({output}, input, "all_to_all");
  auto work = make(OpType::ALLTOALL_BASE, "mpi:all_to_all", input, {output}, options.timeout);
  const auto from = readable(*work, input), to = writable(*work, output);
  if (output_splits.empty() && input_splits.empty()) {
    TORCH_CHECK(
        input.numel() == output.numel() && (input.dim() == 0 ? input.numel() : input.size(0)) % size_ == 0,
        "torch_mpi: all_to_all: input and output must be equally large and their first dimension a multiple of ", size_);
    const int64_t bytes = static_cast<int64_t>(from.nbytes()) / size_;
    return launch(work, asked_async(options, 0), [&] {
      const Span span(bytes);
      check_mpi(
          MPI_Ialltoall(
              from.data_ptr(), span.count, span.type, to.data_ptr(), span.count, span.type, comm(),
              work->add_request()),
          "MPI_Ialltoall");
    });
  }
  const auto pieces = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const int64_t row = rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
    TORCH_CHECK(
        splits.empty() ? rows % size_ == 0
                       : splits.size() == static_cast<size_t>(size_) &&
                std::accumulate(splits.begin(), splits.end(), int64_t(0)) == rows,
        "torch_mpi: all_to_all: the split sizes must be ", size_, " and sum up to the first dimension, ", rows);
    std::vector<Piece> made;
    char* data = static_cast<char*>(tensor.data_ptr());
    for (int i = 0; i < size_; ++i) {
      const int64_t bytes = (splits.empty() ? rows / size_ : splits[static_cast<size_t>(i)]) * row;
      made.push_back({data, bytes});
      data += bytes;
    }
    return made;
  };
  const auto sends = pieces(from, input_splits), receives = pieces(to, output_splits);
  return launch(work, asked_async(options, 0), [&] { exchange(*work, comm(), sends, receives); });
}

WorkHandle MPIBackend::all_to_all_single(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  return alltoall_base(output, input, output_splits, input_splits, options);
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
    const auto from = readable(*work, inputs[static_cast<size_t>(i)]);
    const auto to = writable(*work, outputs[static_cast<size_t>(i)]);
    sends.push_back({from.data_ptr(), static_cast<int64_t>(from.nbytes())});
    receives.push_back({to.data_ptr(), static_cast<int64_t>(to.nbytes())});
  }
  return launch(work, asked_async(options, 0), [&] { exchange(*work, comm(), sends, receives); });
}

// -------------------------------------------------------------------------------------------- point to point

WorkHandle MPIBackend::send(Tensors& tensors, int rank, int tag) {
  const auto& tensor = only(tensors, "send");
  check_rank(rank, "send");
  check_tag(tag);
  auto work = make(OpType::SEND, "mpi:send", tensors, {}, timeout_);
  const auto from = readable(*work, tensor);
  return launch(work, kMessage, [&] {
    const Span span(static_cast<int64_t>(from.nbytes()));
    check_mpi(
        MPI_Isend(from.data_ptr(), span.count, span.type, rank, tag, comm(), work->add_request()), "MPI_Isend");
  });
}

WorkHandle MPIBackend::recv(Tensors& tensors, int rank, int tag) {
  const auto& tensor = only(tensors, "recv");
  TORCH_CHECK(
      rank == MPI_ANY_SOURCE || (rank >= 0 && rank < size_), "torch_mpi: recv: there is no rank ", rank,
      " in this group of ", size_);
  check_tag(tag);
  const bool any = rank == MPI_ANY_SOURCE;
  auto work = make(
      any ? OpType::RECVANYSOURCE : OpType::RECV, any ? "mpi:recvAnySource" : "mpi:recv", tensors, tensors, timeout_);
  work->is_receive();
  const auto to = writable(*work, tensor);
  return launch(work, kMessage, [&] {
    const Span span(static_cast<int64_t>(to.nbytes()));
    check_mpi(MPI_Irecv(to.data_ptr(), span.count, span.type, rank, tag, comm(), work->add_request()), "MPI_Irecv");
  });
}

WorkHandle MPIBackend::recvAnysource(Tensors& tensors, int tag) {
  return recv(tensors, MPI_ANY_SOURCE, tag);
}

// -------------------------------------------------------------------------------------------------- barriers

WorkHandle MPIBackend::barrier(const c10d::BarrierOptions& options) {
  auto work = make(OpType::BARRIER, "mpi:barrier", {}, {}, options.timeout);
  return launch(work, asked_async(options, 0), [&] {
    check_mpi(MPI_Ibarrier(comm(), work->add_request()), "MPI_Ibarrier");
  });
}

// Every rank reports to rank 0, which answers when all have come, or names those that have not.
void MPIBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  communicator_->throw_if_failed();
  Runtime::get().check_usable();
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? timeout_ : options.timeout;
  const auto deadline = Clock::now() + timeout;
  const Talk talk(comm(), communicator_->barrier_tag(), ++monitored_barriers_);
  const auto hear = [&](const std::vector<int>& ranks) {
    auto words = talk.hear(ranks, deadline);
    if (words.size() < ranks.size())
      communicator_->messages_stay();
    return words;
  };
  if (rank_ != 0) {
    talk.say(0, true);
    const auto words = hear({0});
    TORCH_CHECK(
        !words.empty() && words.at(0), "[Rank ", rank_, "]: Rank ", rank_,
        " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please "
        "check rank 0 logs for faulty rank.");
    return;
  }
  std::vector<int> others(static_cast<size_t>(size_ - 1)), missing;
  std::iota(others.begin(), others.end(), 1);
  const auto words = hear(others);
  for (int rank : others)
    if (!words.count(rank))
      missing.push_back(rank);
  for (int rank : others)
    talk.say(rank, missing.empty());
  if (missing.empty())
    return;
  TORCH_CHECK(
      timeout > kNoTimeout, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ", timeout.count(),
      " ms. No ranks successfully processed in monitoredBarrier.");
  const std::vector<int> named(missing.begin(), wait_all_ranks ? missing.end() : missing.begin() + 1);
  TORCH_CHECK(
      false, "[Rank 0]: Rank", named.size() == 1 ? " " : "s ", c10::Join(", ", named),
      " failed to pass monitoredBarrier in ", timeout.count(), " ms");
}

}  // namespace torch_mpi
