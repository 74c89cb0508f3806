// Tensors as MPI needs them: contiguous memory it can reach, and spans of bytes of any length.
#pragma once

#include <limits>
#include <vector>

#include "runtime.h"

namespace torch_mpi {

// The most elements that MPI-3 counts.
constexpr int64_t kIntLimit = std::numeric_limits<int>::max();

// For tensors on a GPU, until all is done that this thread has put on its stream there: before MPI reads or writes such
// memory, and before a result is reported as complete.
void await_stream(const at::Device& device);

// The tensor itself where MPI can read it as it is, else a copy.
at::Tensor send_buffer(MPIWork& work, const at::Tensor& tensor);
// The tensor itself where MPI can write it as it is, else new memory that is copied to it at the end.
at::Tensor receive_buffer(MPIWork& work, const at::Tensor& tensor);
// Like receive_buffer(), with the contents of the tensor.
at::Tensor in_place_buffer(MPIWork& work, const at::Tensor& tensor);
// The same for a list of tensors as one piece of memory: their own where they are adjacent, else a copy.
at::Tensor send_buffer(MPIWork& work, const Tensors& tensors);
at::Tensor receive_buffer(MPIWork& work, const Tensors& tensors);
// A copy of all of them in one piece, on their device.
at::Tensor concatenated(const Tensors& tensors);

// `count` elements of `type` are so many bytes. A longer span is one element of a type of its
// own, which lives as long as this object (MPI keeps what a pending operation needs).
class Span {
 public:
  explicit Span(int64_t bytes);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  MPI_Datatype type = MPI_BYTE;
  int count = 0;
};

struct Piece {
  void* data;
  int64_t bytes;
};

// Every rank sends `to[i]` to rank i and receives `from[i]` from it, straight out of and into the tensors' memory
// wherever that lies, of any length. To be called under the lock.
void exchange(MPIWork& work, MPI_Comm comm, const std::vector<Piece>& to, const std::vector<Piece>& from);

}  // namespace torch_mpi
