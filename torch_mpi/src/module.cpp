// The Python module torch_mpi._c.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "backend.h"

namespace py = pybind11;

namespace torch_mpi {
namespace {

std::string library_version() {
  // Room for any MPI: which one answers is only known afterwards, and the longest answers are MPICH's.
  char text[MPI_MAX_LIBRARY_VERSION_STRING + 16384];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, static_cast<size_t>(length));
  return version.substr(0, version.find_first_of("\n\r"));
}

// MPICH and what derives from it have one binary interface (Cray MPICH, MVAPICH, Intel MPI); Open MPI has another.
void check_library() {
#if defined(OPEN_MPI)
  const char* built_for = "Open MPI";
#else
  const char* built_for = "MPICH";
#endif
  const std::string version = library_version();
  const std::string loaded = version.find("Open MPI") != std::string::npos ? "Open MPI" : "MPICH";
  if (loaded != built_for)
    throw py::import_error(
        c10::str("it was built for ", built_for, ", but the MPI library loaded in this process is ", version));
}

}  // namespace
}  // namespace torch_mpi

PYBIND11_MODULE(_c, module) {
  using namespace torch_mpi;
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  check_library();
  py::module_::import("torch._C._distributed_c10d");
  py::class_<MPIBackend, c10d::Backend, c10::intrusive_ptr<MPIBackend>>(module, "MPIBackend")
      .def("abort", &MPIBackend::abort, without_gil);
  module.def("create", &MPIBackend::create, py::arg("ranks"), py::arg("timeout"), without_gil);
  module.def(
      "start", [](Milliseconds timeout) { Runtime::get().start(timeout); }, py::arg("timeout"), without_gil);
  module.def("world_rank", [] { return Runtime::get().world_rank; });
  module.def("world_size", [] { return Runtime::get().world_size; });
  module.def("library_version", &library_version);
  module.def("gpu_aware", [] { return gpu_aware(Runtime::get().platform) != 0; });
  module.def("set_platform", [](const std::string& name) {
    Runtime::get().platform =
        name == "hip" ? GPU_PLATFORM_HIP : name == "cuda" ? GPU_PLATFORM_CUDA : GPU_PLATFORM_OTHER;
  });
  module.def("stop", [](bool failed) { Runtime::get().stop(failed); }, py::arg("failed"), without_gil);
}
