#include "agreement.h"

#include <iterator>

#include "runtime.h"

namespace torch_mpi {

namespace {

// In the order of c10d::ReduceOp.
const char* const kReductions[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};

}  // namespace

static_assert(sizeof(Call) == 32, "a Call is sent as it lies in memory");

bool Call::operator==(const Call& other) const {
  return what == other.what && type == other.type && reduction == other.reduction && root == other.root &&
      elements == other.elements && lengths == other.lengths;
}

std::string Call::text() const {
  if (what == kGoodbye)
    return "has ended or destroyed the group";
  auto words = c10::str("calls ", c10d::opTypeToString(static_cast<c10d::OpType>(what)));
  if (type == kNone)
    return words;
  words += c10::str(" with ", elements, " elements of ", c10::toString(static_cast<at::ScalarType>(type)));
  if (reduction >= 0 && reduction < static_cast<int32_t>(std::size(kReductions)))
    words += c10::str(", ", kReductions[reduction]);
  if (root != kNone)
    words += c10::str(", root ", root);
  return words;
}

// FNV-1a, by numbers in place of bytes.
int64_t number_of(const std::vector<int64_t>& lengths) {
  uint64_t number = 14695981039346656037u;
  for (const int64_t length : lengths)
    number = (number ^ static_cast<uint64_t>(length)) * 1099511628211u;
  return static_cast<int64_t>(number);
}

void Comparison::post(MPI_Comm comm, int rank, int size, int tag) {
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  check_mpi(MPI_Irecv(&theirs_, sizeof(Call), MPI_BYTE, left, tag, comm, &receive_), "MPI_Irecv");
  check_mpi(MPI_Isend(&mine_, sizeof(Call), MPI_BYTE, right, tag, comm, &send_), "MPI_Isend");
}

bool Comparison::heard() {
  int complete = 0;
  if (receive_ != MPI_REQUEST_NULL)
    check_mpi(MPI_Test(&receive_, &complete, MPI_STATUS_IGNORE), "MPI_Test");
  return receive_ == MPI_REQUEST_NULL;
}

bool Comparison::done() {
  int complete = 0;
  if (send_ != MPI_REQUEST_NULL)
    check_mpi(MPI_Test(&send_, &complete, MPI_STATUS_IGNORE), "MPI_Test");
  return heard() && send_ == MPI_REQUEST_NULL;
}

std::string Comparison::disagreement(int rank, int size) const {
  const auto theirs = theirs_.text(), mine = expected_.text();
  return c10::str(
      theirs_.what == Call::kGoodbye ? "" : "the ranks disagree: ", "rank ", (rank + size - 1) % size, " ", theirs,
      ", rank ", rank, " ", theirs == mine ? "the same with tensors of other lengths" : mine);
}

void Comparison::cancel() {
  for (MPI_Request* request : {&receive_, &send_})
    if (*request != MPI_REQUEST_NULL) {
      MPI_Cancel(request);
      MPI_Request_free(request);
    }
}

}  // namespace torch_mpi
