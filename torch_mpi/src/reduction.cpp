#include "reduction.h"

#include <array>
#include <functional>
#include <map>
#include <utility>

#include "runtime.h"

namespace torch_mpi {
namespace {

using Op = c10d::ReduceOp::RedOpType;

enum Kind { integer, floating, complex, boolean };

// MPI_OP_NULL: the operation has no meaning for this kind.
MPI_Op builtin_op(Kind kind, Op op) {
  static const std::map<Op, std::array<MPI_Op, 4>> table = {
      // integer, floating, complex, boolean
      {Op::SUM, {MPI_SUM, MPI_SUM, MPI_SUM, MPI_LOR}},
      {Op::PRODUCT, {MPI_PROD, MPI_PROD, MPI_PROD, MPI_LAND}},
      {Op::MIN, {MPI_MIN, MPI_MIN, MPI_OP_NULL, MPI_LAND}},
      {Op::MAX, {MPI_MAX, MPI_MAX, MPI_OP_NULL, MPI_LOR}},
      {Op::BAND, {MPI_BAND, MPI_OP_NULL, MPI_OP_NULL, MPI_LAND}},
      {Op::BOR, {MPI_BOR, MPI_OP_NULL, MPI_OP_NULL, MPI_LOR}},
      {Op::BXOR, {MPI_BXOR, MPI_OP_NULL, MPI_OP_NULL, MPI_LXOR}},
  };
  const auto found = table.find(op);
  return found == table.end() ? MPI_OP_NULL : found->second[kind];
}

const std::map<at::ScalarType, std::pair<MPI_Datatype, Kind>> builtin_types = {
    {at::kByte, {MPI_UINT8_T, integer}},
    {at::kChar, {MPI_INT8_T, integer}},
    {at::kShort, {MPI_INT16_T, integer}},
    {at::kInt, {MPI_INT32_T, integer}},
    {at::kLong, {MPI_INT64_T, integer}},
#if TORCH_MPI_TORCH_IS_AT_LEAST(2, 3)
    {at::kUInt16, {MPI_UINT16_T, integer}},
    {at::kUInt32, {MPI_UINT32_T, integer}},
    {at::kUInt64, {MPI_UINT64_T, integer}},
#endif
    {at::kFloat, {MPI_FLOAT, floating}},
    {at::kDouble, {MPI_DOUBLE, floating}},
    {at::kComplexFloat, {MPI_C_FLOAT_COMPLEX, complex}},
    {at::kComplexDouble, {MPI_C_DOUBLE_COMPLEX, complex}},
    {at::kBool, {MPI_C_BOOL, boolean}},
};

// For types MPI does not know: operations of our own, which compute in float.
template <class Before>
struct First {  // NaN wins, as in torch.minimum
  float operator()(float a, float b) const {
    return a != a || Before()(a, b) ? a : b;
  }
};

template <class T, class Function>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  using W = at::opmath_type<T>;
  const T* from = static_cast<const T*>(in);
  T* into = static_cast<T*>(inout);
  for (int i = 0; i < *count; ++i)
    into[i] = static_cast<T>(Function()(static_cast<W>(from[i]), static_cast<W>(into[i])));
}

// Null where the operation has no meaning for the type.
template <class T>
MPI_User_function* function_of(Op op) {
  if (op == Op::SUM)
    return combine<T, std::plus<>>;
  if (op == Op::PRODUCT)
    return combine<T, std::multiplies<>>;
  if constexpr (!c10::is_complex<T>::value) {
    if (op == Op::MIN)
      return combine<T, First<std::less<>>>;
    if (op == Op::MAX)
      return combine<T, First<std::greater<>>>;
  }
  return nullptr;
}

MPI_User_function* custom_function(at::ScalarType type, Op op) {
  static const std::map<at::ScalarType, MPI_User_function* (*)(Op)> table = {
      {at::kHalf, function_of<c10::Half>},
      {at::kBFloat16, function_of<c10::BFloat16>},
      {at::ScalarType::Float8_e4m3fn, function_of<c10::Float8_e4m3fn>},
      {at::ScalarType::Float8_e5m2, function_of<c10::Float8_e5m2>},
#if TORCH_MPI_TORCH_IS_AT_LEAST(2, 2)
      {at::ScalarType::Float8_e4m3fnuz, function_of<c10::Float8_e4m3fnuz>},
      {at::ScalarType::Float8_e5m2fnuz, function_of<c10::Float8_e5m2fnuz>},
#endif
      {at::kComplexHalf, function_of<c10::complex<c10::Half>>},
  };
  const auto found = table.find(type);
  return found == table.end() ? nullptr : found->second(op);
}

}  // namespace

const char* name_of(Op op) {
  static const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "UNUSED"};
  return names[static_cast<int>(op)];
}

Reduction reduction_for(at::ScalarType type, Op asked) {
  const auto check_meaning = [&](bool has_one) {
    TORCH_CHECK(has_one, "torch_mpi: ReduceOp.", name_of(asked), " has no meaning for ", type, " tensors");
  };
  check_meaning(asked != Op::AVG || type != at::kBool);
  // Two are sums; the backend scales before or after.
  const Op op = asked == Op::AVG || asked == Op::PREMUL_SUM ? Op::SUM : asked;
  const auto builtin = builtin_types.find(type);
  if (builtin != builtin_types.end()) {
    const auto [found_type, kind] = builtin->second;
    const MPI_Op found_op = builtin_op(kind, op);
    check_meaning(found_op != MPI_OP_NULL);
    return {found_type, found_op};
  }
  MPI_User_function* function = custom_function(type, op);
  check_meaning(function != nullptr);
  static std::map<std::pair<at::ScalarType, Op>, Reduction> custom_reductions;
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  auto& made = custom_reductions[std::make_pair(type, op)];
  if (made.op != MPI_OP_NULL)
    return made;
  const int bytes = static_cast<int>(c10::elementSize(type));
  check_mpi(MPI_Type_contiguous(bytes, MPI_BYTE, &made.type), "MPI_Type_contiguous");
  check_mpi(MPI_Type_commit(&made.type), "MPI_Type_commit");
  check_mpi(MPI_Op_create(function, /*commute=*/1, &made.op), "MPI_Op_create");
  return made;
}

#if defined(OPEN_MPI)
constexpr int kTree = 0, kRing = 1;
// Of what is sent at once in a ring; below, a tree's fewer steps are faster.
constexpr int64_t kRingPart = 2048;

// Open MPI's non-blocking all_reduce in place sends all of it up a tree and down again, whatever its size. From 4.1 on
// a control variable of MPI's tool interface makes it a ring, which moves two parts in `ranks` of it instead.
static MPI_T_cvar_handle all_reduce_variable() {
  int level = 0, index = 0, count = 0, value = kTree;
  MPI_T_cvar_handle handle = nullptr;
  const bool usable = MPI_T_init_thread(MPI_THREAD_SERIALIZED, &level) == MPI_SUCCESS &&
      MPI_T_cvar_get_index("coll_libnbc_iallreduce_algorithm", &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS &&
      MPI_T_cvar_read(handle, &value) == MPI_SUCCESS && value == kTree;  // else the user has chosen
  return usable ? handle : nullptr;
}

void choose_all_reduce(int64_t bytes, int ranks) {
  static const MPI_T_cvar_handle variable = all_reduce_variable();
  static int chosen = kTree;
  const int wanted = bytes >= kRingPart * ranks ? kRing : kTree;
  if (variable && wanted != chosen && MPI_T_cvar_write(variable, &wanted) == MPI_SUCCESS)
    chosen = wanted;
}
#else
void choose_all_reduce(int64_t, int) {}
#endif

}  // namespace torch_mpi
