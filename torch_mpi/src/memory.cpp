#include "memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace torch_mpi {

void await_stream(const at::Device& device) {
  if (device.is_cpu())
    return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.getStream(device).synchronize();
}

namespace {

constexpr int64_t kBlock = int64_t(1) << 30;

// Why MPI cannot be handed a pointer to GPU memory in this operation; null where it can.
const char* why_not_gpu_memory(const MPIWork& work) {
  static const bool aware = gpu_aware(Runtime::get().platform) != 0;
  if (!aware)
    return "the MPI library says it cannot take GPU memory; if it can, set TORCH_MPI_GPU_AWARE=1";
#if defined(OPEN_MPI)
  // Its documentation says so of all non-blocking collectives; reductions crash (its issues 9845 and 12045).
  if (!work.is_message())
    return "Open MPI takes GPU memory in send and receive only, not in non-blocking collectives";
#endif
  return nullptr;
}

// May MPI be handed a pointer to the memory of this device?
bool reachable(const MPIWork& work, const at::Device& device) {
  if (device.is_cpu())
    return true;
  const char* reason = why_not_gpu_memory(work);
  if (reason && Runtime::get().world_rank == 0) {
    TORCH_WARN_ONCE("torch_mpi: tensors on ", device.type(), " are copied through pinned host memory: ", reason);
  }
  return !reason;
}

bool plain(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.layout() == at::kStrided, "torch_mpi: a dense tensor is needed here, but this one is ", tensor.layout());
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor new_memory(const MPIWork& work, const at::Tensor& like, at::IntArrayRef sizes) {
  auto options = like.options();
  if (!reachable(work, like.device()))
    options = options.device(at::kCPU).pinned_memory(like.is_cuda());
  return at::empty(sizes, options);
}

bool directly_usable(const MPIWork& work, const at::Tensor& tensor) {
  return plain(tensor) && reachable(work, tensor.device());
}

at::Tensor kept(MPIWork& work, at::Tensor tensor) {
  await_stream(tensor.device());
  work.keep(tensor);
  return tensor;
}

at::Tensor copy_of(const MPIWork& work, const at::Tensor& tensor) {
  c10::NoGradGuard no_grad;
  at::Tensor copy = new_memory(work, tensor, tensor.sizes());
  copy.copy_(tensor);
  return copy;
}

bool adjacent(const MPIWork& work, const Tensors& tensors) {
  const char* end = nullptr;
  for (const auto& tensor : tensors) {
    if (!directly_usable(work, tensor))
      return false;
    const char* begin = static_cast<const char*>(tensor.data_ptr());
    if (end && begin != end)
      return false;
    end = begin + tensor.nbytes();
  }
  return true;
}

int64_t total_elements(const Tensors& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors)
    sum += tensor.numel();
  return sum;
}

// The memory of tensors that lie one after the other, as one flat tensor.
at::Tensor span_of(MPIWork& work, const Tensors& tensors) {
  for (const auto& tensor : tensors)
    work.keep(tensor);
  const auto& first = tensors.front();
  await_stream(first.device());
  return at::from_blob(first.data_ptr(), {total_elements(tensors)}, first.options());
}

void copy_parts(const at::Tensor& flat, const Tensors& tensors, bool into_tensors) {
  c10::NoGradGuard no_grad;
  int64_t start = 0;
  for (const auto& tensor : tensors) {
    auto part = flat.narrow(0, start, tensor.numel()).view(tensor.sizes());
    if (into_tensors)
      at::Tensor(tensor).copy_(part);
    else
      part.copy_(tensor);
    start += tensor.numel();
  }
}

struct AbsoluteTypes {
  explicit AbsoluteTypes(const std::vector<Piece>& pieces)
      : counts(pieces.size(), 1), displacements(pieces.size(), 0), types(pieces.size(), MPI_BYTE) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].bytes == 0) {
        counts[i] = 0;
        continue;
      }
      const Span span(pieces[i].bytes);
      MPI_Aint address = 0;
      int length = span.count;
      MPI_Get_address(pieces[i].data, &address);
      check_mpi(MPI_Type_create_hindexed(1, &length, &address, span.type, &types[i]), "MPI_Type_create_hindexed");
      check_mpi(MPI_Type_commit(&types[i]), "MPI_Type_commit");
    }
  }
  ~AbsoluteTypes() {
    if (!Runtime::get().usable())
      return;
    std::lock_guard<std::mutex> lock(Runtime::get().mutex);
    for (auto& type : types)
      if (type != MPI_BYTE)
        MPI_Type_free(&type);
  }
  std::vector<int> counts, displacements;
  std::vector<MPI_Datatype> types;
};

}  // namespace

at::Tensor send_buffer(MPIWork& work, const at::Tensor& tensor) {
  return kept(work, directly_usable(work, tensor) ? tensor : copy_of(work, tensor));
}

at::Tensor receive_buffer(MPIWork& work, const at::Tensor& tensor) {
  if (directly_usable(work, tensor))
    return kept(work, tensor);
  at::Tensor buffer = new_memory(work, tensor, tensor.sizes());
  work.then([tensor, buffer] { at::Tensor(tensor).copy_(buffer); });
  await_stream(tensor.device());
  return kept(work, buffer);
}

at::Tensor in_place_buffer(MPIWork& work, const at::Tensor& tensor) {
  if (directly_usable(work, tensor))
    return kept(work, tensor);
  at::Tensor copy = copy_of(work, tensor);
  work.then([tensor, copy] { at::Tensor(tensor).copy_(copy); });
  return kept(work, copy);
}

at::Tensor send_buffer(MPIWork& work, const Tensors& tensors) {
  if (adjacent(work, tensors))
    return span_of(work, tensors);
  at::Tensor flat = new_memory(work, tensors.front(), {total_elements(tensors)});
  copy_parts(flat, tensors, /*into_tensors=*/false);
  return kept(work, flat);
}

at::Tensor concatenated(const Tensors& tensors) {
  at::Tensor flat = at::empty({total_elements(tensors)}, tensors.front().options());
  copy_parts(flat, tensors, /*into_tensors=*/false);
  return flat;
}

at::Tensor receive_buffer(MPIWork& work, const Tensors& tensors) {
  if (adjacent(work, tensors))
    return span_of(work, tensors);
  at::Tensor flat = new_memory(work, tensors.front(), {total_elements(tensors)});
  work.then([flat, tensors] { copy_parts(flat, tensors, /*into_tensors=*/true); });
  await_stream(tensors.front().device());
  return kept(work, flat);
}

Span::Span(int64_t bytes) {
  if (bytes <= kIntLimit) {
    count = static_cast<int>(bytes);
    return;
  }
  MPI_Datatype block, blocks;
  MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, &block);
  MPI_Type_contiguous(static_cast<int>(bytes / kBlock), block, &blocks);
  const int rest = static_cast<int>(bytes % kBlock);
  int lengths[] = {1, rest};
  MPI_Aint starts[] = {0, static_cast<MPI_Aint>(bytes - rest)};
  MPI_Datatype types[] = {blocks, MPI_BYTE};
  check_mpi(MPI_Type_create_struct(2, lengths, starts, types, &type), "MPI_Type_create_struct");
  check_mpi(MPI_Type_commit(&type), "MPI_Type_commit");
  MPI_Type_free(&blocks);
  MPI_Type_free(&block);
  count = 1;
}

Span::~Span() {
  if (type != MPI_BYTE)
    MPI_Type_free(&type);
}

void exchange(MPIWork& work, MPI_Comm comm, const std::vector<Piece>& to, const std::vector<Piece>& from) {
  // MPI reads these arrays until the operation is complete.
  auto sends = std::make_shared<AbsoluteTypes>(to);
  work.keep(sends);
  auto receives = std::make_shared<AbsoluteTypes>(from);
  work.keep(receives);
  check_mpi(
      MPI_Ialltoallw(
          MPI_BOTTOM, sends->counts.data(), sends->displacements.data(), sends->types.data(), MPI_BOTTOM,
          receives->counts.data(), receives->displacements.data(), receives->types.data(), comm, work.add_request()),
      "MPI_Ialltoallw");
}

}  // namespace torch_mpi
