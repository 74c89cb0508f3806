// The extension of the small torch: with MPI it really adds up numbers over all ranks.
#include <Python.h>
#include "small/small.h"
#ifdef USE_C10D_MPI
#include <mpi.h>
#endif

static PyObject* mpi_available(PyObject*, PyObject*) {
#ifdef USE_C10D_MPI
  Py_RETURN_TRUE;
#else
  Py_RETURN_FALSE;
#endif
}

static PyObject* rank_sum(PyObject*, PyObject*) {
#ifdef USE_C10D_MPI
  int initialized = 0, rank = 0, size = 0, mine = 0, sum = 0;
  MPI_Initialized(&initialized);
  if (!initialized) MPI_Init(nullptr, nullptr);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return Py_BuildValue("ii", size, sum);
#else
  PyErr_SetString(PyExc_RuntimeError, "built without MPI");
  return nullptr;
#endif
}

static PyMethodDef methods[] = {
  {"mpi_available", mpi_available, METH_NOARGS, "whether this was built with MPI"},
  {"rank_sum", rank_sum, METH_NOARGS, "number of ranks, and the sum of (rank + 1) over them"},
  {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
