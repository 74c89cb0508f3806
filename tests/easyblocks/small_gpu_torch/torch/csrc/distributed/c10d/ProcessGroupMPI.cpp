#include <Python.h>

#ifdef USE_C10D_MPI

#include <mpi.h>
#include <stdexcept>
#ifdef USE_NCCL
#include <nccl.h>
#endif

#define TORCH_CHECK(condition, ...) if (!(condition)) throw std::runtime_error(__VA_ARGS__)

namespace {

bool cudaAwareMpiCheck() {
  return false;
}

struct GpuTensor {
  bool is_cuda() const { return true; }
};

// as PyTorch asks before every operation
void checkSingleTensorHelper(const GpuTensor& tensor) {
  if (tensor.is_cuda() && !cudaAwareMpiCheck()) {
    TORCH_CHECK(false, "the MPI used does not have CUDA-aware MPI support");
  }
}

} // namespace

static PyObject* takes_gpu_memory(PyObject*, PyObject*) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) MPI_Init(nullptr, nullptr);
  try {
    checkSingleTensorHelper(GpuTensor());
  } catch (const std::runtime_error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_TRUE;
}

static PyObject* nccl_version(PyObject*, PyObject*) {
  int version = 0;
#ifdef USE_NCCL
  ncclGetVersion(&version);
#endif
  return PyLong_FromLong(version);
}

static PyObject* mpi_available(PyObject*, PyObject*) {
  Py_RETURN_TRUE;
}

static PyObject* rank_sum(PyObject*, PyObject*) {
  int initialized = 0, rank = 0, size = 0, sum = 0;
  MPI_Initialized(&initialized);
  if (!initialized) MPI_Init(nullptr, nullptr);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return Py_BuildValue("ii", size, sum);
}

static PyMethodDef methods[] = {
  {"mpi_available", mpi_available, METH_NOARGS, "whether this was built with MPI"},
  {"nccl_version", nccl_version, METH_NOARGS, "of the NCCL that this was linked with, 0 without"},
  {"rank_sum", rank_sum, METH_NOARGS, "number of ranks, and the sum of (rank + 1) over them"},
  {"takes_gpu_memory", takes_gpu_memory, METH_NOARGS, "True, or an error that says why not"},
  {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }

#endif
