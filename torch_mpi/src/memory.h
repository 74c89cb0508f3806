// Tensors as MPI needs them: contiguous memory it can reach, and spans of bytes of any length.
#pragma once

#include <vector>

#include "runtime.h"

namespace torch_mpi {

// One tensor will do, too.
using TensorList = at::ArrayRef<at::Tensor>;

// For tensors on a GPU, until all is done that this thread has put on its stream there: before MPI reads or writes such
// memory, and before a result is reported as complete.
void await_stream(const at::Device& device);

struct Piece {
  char* data;
  int64_t bytes;
};

// What MPI does with memory.
enum class Use { send, receive, both };

// The memory of these tensors in one piece, which the work keeps: their own where they are adjacent and MPI reaches it,
// else a copy, which is made now (to send), copied to them at the end (to receive), or both.
Piece memory_of(MPIWork& work, TensorList tensors, Use use);
// A copy of all of them in one piece, on their device.
at::Tensor concatenated(TensorList tensors);

// A reduction of more elements, a broadcast of more bytes, is several ones, on all ranks alike.
constexpr int64_t kPartLimit = int64_t(1) << 30;

// Calls `post` with the start and the length of each part, at least once: an empty tensor is a call of MPI, too.
template <class Post>
void in_parts(int64_t length, const Post& post) {
  int64_t start = 0;
  do {
    const int count = static_cast<int>(std::min(kPartLimit, length - start));
    post(start, count);
    start += count;
  } while (start < length);
}

// `count` elements of `type` are so many bytes. More than MPI can count are one element of a type of their own, which
// lives as long as this object (MPI keeps what a pending operation needs).
class Span {
 public:
  explicit Span(int64_t bytes);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  MPI_Datatype type = MPI_BYTE;
  int count = 0;
};

// Every rank sends `to[i]` to rank i and receives `from[i]` from it, of any length. `rank` is this one. Under the lock.
// Empty ones are messages, too, except to this rank itself: so those of one call never meet those of another.
void exchange(MPIWork& work, int rank, const std::vector<Piece>& to, const std::vector<Piece>& from);

}  // namespace torch_mpi
