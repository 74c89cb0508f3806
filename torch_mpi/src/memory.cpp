#include "memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>

namespace torch_mpi {

void await_stream(const at::Device& device) {
  if (device.is_cpu())
    return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.getStream(device).synchronize();
}

namespace {

// May MPI be handed a pointer to the memory of this device?
bool reachable(const MPIWork& work, const at::Device& device) {
  if (device.is_cpu())
    return true;
  static const bool aware = gpu_aware(Runtime::get().platform) != 0;
  const char* reason = nullptr;
#if defined(OPEN_MPI)
  // Its documentation says so of all non-blocking collectives; reductions crash (its issues 9845 and 12045).
  if (!work.is_message())
    reason = "Open MPI takes GPU memory in send and receive only, not in non-blocking collectives";
#endif
  if (!aware)
    reason = "the MPI library says it cannot take GPU memory; if it can, set TORCH_MPI_GPU_AWARE=1";
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

// Can MPI use them where they are, one after the other?
bool adjacent(const MPIWork& work, TensorList tensors) {
  const char* end = nullptr;
  for (const auto& tensor : tensors) {
    if (!plain(tensor) || !reachable(work, tensor.device()))
      return false;
    const char* begin = static_cast<const char*>(tensor.data_ptr());
    if (end && begin != end)
      return false;
    end = begin + tensor.nbytes();
  }
  return true;
}

int64_t total_elements(TensorList tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors)
    sum += tensor.numel();
  return sum;
}

void copy_parts(const at::Tensor& flat, TensorList tensors, bool into_tensors) {
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

}  // namespace

Piece memory_of(MPIWork& work, TensorList tensors, Use use) {
  const auto& first = tensors.front();
  const int64_t elements = total_elements(tensors), bytes = elements * static_cast<int64_t>(first.element_size());
  if (adjacent(work, tensors)) {
    await_stream(first.device());
    for (const auto& tensor : tensors)
      work.keep(tensor);
    return {static_cast<char*>(first.data_ptr()), bytes};
  }
  auto options = first.options();
  if (!reachable(work, first.device()))
    options = options.device(at::kCPU).pinned_memory(first.is_cuda());
  const at::Tensor flat = at::empty({elements}, options);
  if (use != Use::receive)
    copy_parts(flat, tensors, /*into_tensors=*/false);
  if (use != Use::send)
    work.then([flat, kept = tensors.vec()] { copy_parts(flat, kept, /*into_tensors=*/true); });
  await_stream(first.device());
  work.keep(flat);
  return {static_cast<char*>(flat.data_ptr()), bytes};
}

at::Tensor concatenated(TensorList tensors) {
  at::Tensor flat = at::empty({total_elements(tensors)}, tensors.front().options());
  copy_parts(flat, tensors, /*into_tensors=*/false);
  return flat;
}

Span::Span(int64_t bytes) {
  if (bytes <= std::numeric_limits<int>::max()) {
    count = static_cast<int>(bytes);
    return;
  }
  std::vector<int> lengths;
  std::vector<MPI_Aint> starts;
  in_parts(bytes, [&](int64_t start, int length) {
    starts.push_back(start);
    lengths.push_back(length);
  });
  const int parts = static_cast<int>(lengths.size());
  check_mpi(
      MPI_Type_create_hindexed(parts, lengths.data(), starts.data(), MPI_BYTE, &type), "MPI_Type_create_hindexed");
  check_mpi(MPI_Type_commit(&type), "MPI_Type_commit");
  count = 1;
}

Span::~Span() {
  if (type != MPI_BYTE)
    MPI_Type_free(&type);
}

void exchange(MPIWork& work, int rank, const std::vector<Piece>& to, const std::vector<Piece>& from) {
  const int tag = Runtime::get().tag(Runtime::exchanged), size = static_cast<int>(to.size());
  // Each rank begins with another: not all with the first.
  const auto others = [&](const auto& function) {
    for (int step = to[rank].bytes + from[rank].bytes == 0 ? 1 : 0; step < size; ++step)
      function((rank + step) % size);
  };
  others([&](int other) {
    const Span span(from[other].bytes);
    work.expect(from[other].bytes);
    work.begin("MPI_Irecv", MPI_Irecv, from[other].data, span.count, span.type, other, tag);
  });
  others([&](int other) {
    const Span span(to[other].bytes);
    work.begin("MPI_Isend", MPI_Isend, to[other].data, span.count, span.type, other, tag);
  });
}

}  // namespace torch_mpi
