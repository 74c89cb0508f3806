// How MPI reduces the elements of a tensor: its data type and operation, or the reason why it cannot.
#pragma once

#include <mpi.h>

#include "torch_api.h"

namespace torch_mpi {

struct Reduction {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
};

const char* name_of(c10d::ReduceOp::RedOpType op);

// Throws for a combination that has no meaning (the bitwise AND of floats, the maximum of complex numbers).
Reduction reduction_for(at::ScalarType type, c10d::ReduceOp::RedOpType op);

// To be called under the lock before MPI_Iallreduce of so many bytes in a group of so many ranks: has MPI take the
// faster way, where MPI lets that be chosen.
void choose_all_reduce(int64_t bytes, int ranks);

}  // namespace torch_mpi
