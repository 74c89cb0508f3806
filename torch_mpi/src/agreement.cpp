#include "agreement.h"

#include <cstring>

#include "reduction.h"
#include "runtime.h"

namespace torch_mpi {

static_assert(sizeof(Call) == 32, "a Call is sent and compared as it lies in memory");

std::string Call::text() const {
  if (what == kGoodbye)
    return "has ended or destroyed the group";
  auto words = c10::str("calls ", c10d::opTypeToString(static_cast<c10d::OpType>(what)));
  if (type == kNone)
    return words;
  words += c10::str(" with ", elements, " elements of ", c10::toString(static_cast<at::ScalarType>(type)));
  if (reduction != kNone)
    words += c10::str(", ", name_of(static_cast<c10d::ReduceOp::RedOpType>(reduction)));
  if (root != kNone)
    words += c10::str(", root ", root);
  return words;
}

void Comparison::post(MPI_Comm comm, int tag) {
  check_mpi(MPI_Irecv(&theirs_, sizeof(Call), MPI_BYTE, left(), tag, comm, &receive_), "MPI_Irecv");
  check_mpi(MPI_Isend(&mine_, sizeof(Call), MPI_BYTE, (rank_ + 1) % size_, tag, comm, &send_), "MPI_Isend");
}

bool Comparison::heard() {
  return is_complete(receive_);
}

bool Comparison::done() {
  return heard() && is_complete(send_);
}

bool Comparison::agrees() const {
  return std::memcmp(&theirs_, &expected_, sizeof(Call)) == 0;
}

std::string Comparison::disagreement() const {
  const auto theirs = theirs_.text(), mine = expected_.text();
  return c10::str(
      theirs_.what == Call::kGoodbye ? "" : "the ranks disagree: ", "rank ", left(), " ", theirs,
      ", rank ", rank_, " ", theirs == mine ? "the same with tensors of other lengths" : mine);
}

void Comparison::cancel() {
  for (MPI_Request* request : {&receive_, &send_})
    if (*request != MPI_REQUEST_NULL) {
      MPI_Cancel(request);
      MPI_Request_free(request);
    }
}

}  // namespace torch_mpi
