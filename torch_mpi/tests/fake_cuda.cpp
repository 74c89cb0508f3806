// A CUDA device imitated in host memory, for a PyTorch built without CUDA: enough to see what torch_mpi does with GPU
// tensors where there is no GPU. What it imitates, and makes stricter than the real one:
//
//  - Kernels and copies are put on a stream and run when that stream is synchronised, and not before. Memory that is
//    handed to MPI too early holds old data every time, not only when a GPU happens to be slow.
//  - With FAKE_CUDA=closed the host cannot touch the device's memory: whoever does is killed. Each allocation is mapped
//    twice, and only the kernels know the other address. With FAKE_CUDA=open MPI can read and write it, as GPU-aware
//    libraries can.
//  - Each thread has its current stream, which is 0 until it chooses another one.
//
// There is one device. Kernels are the CPU's. No events, no graphs, no caching allocator.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

const c10::Device device(c10::kCUDA, 0);
std::atomic<int64_t> pinned_allocations{0};

// ---------------------------------------------------------------------------------------------------- memory

struct Block {
  char* device;
  char* host;
  size_t bytes;
};
std::mutex blocks_mutex;
std::map<const char*, Block> blocks;  // by the device's address

void release(void* pointer) {
  std::lock_guard<std::mutex> lock(blocks_mutex);
  const auto found = blocks.find(static_cast<char*>(pointer));
  munmap(found->second.device, found->second.bytes);
  munmap(found->second.host, found->second.bytes);
  blocks.erase(found);
}

struct DeviceAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t asked) override {
    if (asked == 0)
      return {nullptr, nullptr, &release, device};
    const bool open = std::strcmp(std::getenv("FAKE_CUDA"), "open") == 0;
    const size_t bytes = (asked + 4095) / 4096 * 4096;
    const int file = memfd_create("fake_cuda", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "fake_cuda: no memory");
    void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void* mapped = mmap(nullptr, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED, file, 0);
    close(file);
    TORCH_CHECK(host != MAP_FAILED && mapped != MAP_FAILED, "fake_cuda: no memory");
    std::lock_guard<std::mutex> lock(blocks_mutex);
    blocks[static_cast<char*>(mapped)] = {static_cast<char*>(mapped), static_cast<char*>(host), bytes};
    return {mapped, mapped, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
DeviceAllocator device_allocator;
REGISTER_ALLOCATOR(c10::kCUDA, &device_allocator)

struct PinnedAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    ++pinned_allocations;
    return c10::GetCPUAllocator()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return c10::GetCPUAllocator()->raw_deleter();
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
PinnedAllocator pinned_allocator;

// What a kernel sees of a tensor: for one on the device, its memory at the address the host may use.
at::Tensor seen_by_kernels(const at::Tensor& tensor) {
  if (!tensor.is_cuda() || tensor.numel() == 0)
    return tensor.is_cuda() ? at::empty(tensor.sizes(), tensor.options().device(at::kCPU)) : tensor;
  const char* address = static_cast<const char*>(tensor.data_ptr());
  std::lock_guard<std::mutex> lock(blocks_mutex);
  const auto& block = std::prev(blocks.upper_bound(address))->second;
  return at::from_blob(
      block.host + (address - block.device), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

// --------------------------------------------------------------------------------------------------- streams

std::mutex queues_mutex;
std::map<c10::StreamId, std::vector<std::function<void()>>> queues;
thread_local c10::StreamId current_stream = 0;
thread_local bool in_kernel = false;

void enqueue(std::function<void()> kernel) {
  std::lock_guard<std::mutex> lock(queues_mutex);
  queues[current_stream].push_back(std::move(kernel));
}

void synchronize(c10::StreamId stream) {
  std::vector<std::function<void()>> kernels;
  {
    std::lock_guard<std::mutex> lock(queues_mutex);
    kernels.swap(queues[stream]);
  }
  for (auto& kernel : kernels)
    kernel();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::kCUDA;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return device;
  }
  c10::Device getDevice() const override {
    return device;
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(device);
    current_stream = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.id());
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex current_device() const override {
    return 0;
  }
  int getNumGPUs() const override {
    return 1;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator;
  }
};
}  // namespace

namespace at {
using FakeHooks = ::Hooks;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", FakeHooks)
}  // namespace at

// --------------------------------------------------------------------------------------------------- kernels

namespace {

at::Tensor empty(
    at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat>) {
  return at::detail::empty_generic(
      sizes, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
      type.value_or(c10::get_default_dtype_as_scalartype()), std::nullopt);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      sizes, strides, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
      type.value_or(c10::get_default_dtype_as_scalartype()));
}

// As in CUDA: the host waits for copies from and to itself, unless told otherwise, and never for those on the device.
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  // A kernel computes its result on the CPU; that it arrives only later is what makes it one.
  const at::Tensor source = in_kernel && from.is_cpu() ? from.clone() : from;
  enqueue([to, source]() mutable { seen_by_kernels(to).copy_(seen_by_kernels(source)); });
  const bool on_device = to.is_cuda() && from.is_cuda();
  if (to.is_cpu() ? !non_blocking || in_kernel : !on_device && !non_blocking && !in_kernel)
    synchronize(current_stream);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::Tensor target = to;
  return copy_(target, from, false);
}

// Everything else is computed by the CPU.
void kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  in_kernel = true;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    in_kernel = false;
    throw;
  }
  in_kernel = false;
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
}

}  // namespace

PYBIND11_MODULE(fake_cuda, module) {
  // What is in the device's memory now, without waiting for anything.
  module.def("peek", [](const at::Tensor& tensor) { return seen_by_kernels(tensor).clone(); });
  module.def("use_stream", [](int64_t stream) { current_stream = stream; });
  module.def("pinned_allocations", [] { return pinned_allocations.load(); });
}
