// What the ranks of a group must agree on in each collective, and how they learn that they do not.
//
// Each rank tells its right neighbour what it calls, in one small message, and compares what the left one tells it. So
// wherever ranks differ at least one of them sees it, at the same small cost however many there are. A rank that leaves
// a group for good says so in the same way; its neighbour reads it in place of the call that it waits for in vain.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>

#include "torch_api.h"

namespace torch_mpi {

// As it is sent; the left neighbour's must be equal.
struct Call {
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kGoodbye = -2;

  int32_t what = kGoodbye;  // a c10d::OpType
  int32_t type = kNone;
  int32_t reduction = kNone;
  int32_t root = kNone;
  int64_t elements = 0;
  int64_t lengths = 0;  // of the tensors, as a number that differs where they do

  std::string text() const;
};

// The two messages of one call. MPI writes to it until done(). All of its functions are called under the lock.
class Comparison {
 public:
  Comparison(const Call& mine, const Call& expected, int rank, int size)
      : mine_(mine), expected_(expected), rank_(rank), size_(size) {}
  void post(MPI_Comm comm, int tag);
  int left() const {
    return (rank_ + size_ - 1) % size_;
  }
  // Has the left neighbour's message come?
  bool heard();
  bool done();
  // Once heard.
  bool agrees() const;
  std::string disagreement() const;
  // At the end, when nothing can come any more.
  void cancel();

 private:
  const Call mine_, expected_;  // expected of the left neighbour
  const int rank_, size_;
  Call theirs_;
  MPI_Request receive_ = MPI_REQUEST_NULL, send_ = MPI_REQUEST_NULL;
};

}  // namespace torch_mpi
