#include "reduction.h"

#include <functional>
#include <map>
#include <utility>

#include "runtime.h"

namespace torch_mpi {
namespace {

using Op = c10d::ReduceOp::RedOpType;

// AVG and PREMUL_SUM are sums; the backend scales before or after.
Op base_of(Op op) {
  return op == Op::AVG || op == Op::PREMUL_SUM ? Op::SUM : op;
}

const char* name_of(Op op) {
  static const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "UNUSED"};
  return names[static_cast<int>(op)];
}

enum class Kind { integer, floating, complex, boolean };

// MPI_OP_NULL: the operation has no meaning for this kind.
MPI_Op builtin_op(Kind kind, Op op) {
  switch (op) {
    case Op::SUM:
      return kind == Kind::boolean ? MPI_LOR : MPI_SUM;
    case Op::PRODUCT:
      return kind == Kind::boolean ? MPI_LAND : MPI_PROD;
    case Op::MIN:
      return kind == Kind::boolean ? MPI_LAND : kind == Kind::complex ? MPI_OP_NULL : MPI_MIN;
    case Op::MAX:
      return kind == Kind::boolean ? MPI_LOR : kind == Kind::complex ? MPI_OP_NULL : MPI_MAX;
    case Op::BAND:
      return kind == Kind::boolean ? MPI_LAND : kind == Kind::integer ? MPI_BAND : MPI_OP_NULL;
    case Op::BOR:
      return kind == Kind::boolean ? MPI_LOR : kind == Kind::integer ? MPI_BOR : MPI_OP_NULL;
    case Op::BXOR:
      return kind == Kind::boolean ? MPI_LXOR : kind == Kind::integer ? MPI_BXOR : MPI_OP_NULL;
    default:
      return MPI_OP_NULL;
  }
}

struct Builtin {
  MPI_Datatype type;
  Kind kind;
};

// MPI_DATATYPE_NULL where MPI does not know the type.
Builtin builtin_type(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return {MPI_UINT8_T, Kind::integer};
    case at::kChar:
      return {MPI_INT8_T, Kind::integer};
    case at::kShort:
      return {MPI_INT16_T, Kind::integer};
    case at::kInt:
      return {MPI_INT32_T, Kind::integer};
    case at::kLong:
      return {MPI_INT64_T, Kind::integer};
#if TORCH_MPI_TORCH_IS_AT_LEAST(2, 3)
    case at::kUInt16:
      return {MPI_UINT16_T, Kind::integer};
    case at::kUInt32:
      return {MPI_UINT32_T, Kind::integer};
    case at::kUInt64:
      return {MPI_UINT64_T, Kind::integer};
#endif
    case at::kFloat:
      return {MPI_FLOAT, Kind::floating};
    case at::kDouble:
      return {MPI_DOUBLE, Kind::floating};
    case at::kComplexFloat:
      return {MPI_C_FLOAT_COMPLEX, Kind::complex};
    case at::kComplexDouble:
      return {MPI_C_DOUBLE_COMPLEX, Kind::complex};
    case at::kBool:
      return {MPI_C_BOOL, Kind::boolean};
    default:
      return {MPI_DATATYPE_NULL, Kind::integer};
  }
}

// For types MPI does not know: operations of our own, which compute in float.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<c10::complex<c10::Half>> {
  using type = c10::complex<float>;
};

struct Minimum {  // NaN wins, as in torch.minimum
  float operator()(float a, float b) const {
    return a != a || a < b ? a : b;
  }
};
struct Maximum {
  float operator()(float a, float b) const {
    return a != a || a > b ? a : b;
  }
};

template <class T, class Function>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  using W = typename Wide<T>::type;
  const T* from = static_cast<const T*>(in);
  T* into = static_cast<T*>(inout);
  for (int i = 0; i < *count; ++i)
    into[i] = static_cast<T>(Function()(static_cast<W>(from[i]), static_cast<W>(into[i])));
}

// Null where the operation has no meaning for the type.
template <class T>
MPI_User_function* function_of(Op op) {
  constexpr bool is_complex = !std::is_same_v<typename Wide<T>::type, float>;
  if (op == Op::SUM)
    return combine<T, std::plus<>>;
  if (op == Op::PRODUCT)
    return combine<T, std::multiplies<>>;
  if constexpr (!is_complex) {
    if (op == Op::MIN)
      return combine<T, Minimum>;
    if (op == Op::MAX)
      return combine<T, Maximum>;
  }
  return nullptr;
}

MPI_User_function* custom_function(at::ScalarType type, Op op) {
  switch (type) {
    case at::kHalf:
      return function_of<c10::Half>(op);
    case at::kBFloat16:
      return function_of<c10::BFloat16>(op);
    case at::ScalarType::Float8_e4m3fn:
      return function_of<c10::Float8_e4m3fn>(op);
    case at::ScalarType::Float8_e5m2:
      return function_of<c10::Float8_e5m2>(op);
#if TORCH_MPI_TORCH_IS_AT_LEAST(2, 2)
    case at::ScalarType::Float8_e4m3fnuz:
      return function_of<c10::Float8_e4m3fnuz>(op);
    case at::ScalarType::Float8_e5m2fnuz:
      return function_of<c10::Float8_e5m2fnuz>(op);
#endif
    case at::kComplexHalf:
      return function_of<c10::complex<c10::Half>>(op);
    default:
      return nullptr;
  }
}

std::map<std::pair<at::ScalarType, Op>, Reduction> custom_reductions;

Reduction custom_reduction(at::ScalarType type, MPI_User_function* function) {
  Reduction made{MPI_DATATYPE_NULL, MPI_OP_NULL};
  const int bytes = static_cast<int>(c10::elementSize(type));
  check_mpi(MPI_Type_contiguous(bytes, MPI_BYTE, &made.type), "MPI_Type_contiguous");
  check_mpi(MPI_Type_commit(&made.type), "MPI_Type_commit");
  check_mpi(MPI_Op_create(function, /*commute=*/1, &made.op), "MPI_Op_create");
  return made;
}

}  // namespace

Reduction reduction_for(at::ScalarType type, Op asked) {
  const auto check_meaning = [&](bool has_one) {
    TORCH_CHECK(has_one, "torch_mpi: ReduceOp.", name_of(asked), " has no meaning for ", type, " tensors");
  };
  check_meaning(asked != Op::AVG || type != at::kBool);
  const Op op = base_of(asked);
  const Builtin builtin = builtin_type(type);
  if (builtin.type != MPI_DATATYPE_NULL) {
    const MPI_Op found = builtin_op(builtin.kind, op);
    check_meaning(found != MPI_OP_NULL);
    return {builtin.type, found};
  }
  MPI_User_function* function = custom_function(type, op);
  check_meaning(function != nullptr);
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  const auto key = std::make_pair(type, op);
  const auto found = custom_reductions.find(key);
  if (found != custom_reductions.end())
    return found->second;
  return custom_reductions[key] = custom_reduction(type, function);
}

#if defined(OPEN_MPI)
namespace {

// Open MPI's non-blocking all_reduce in place sends all of it up a tree and down again, whatever its size. From 4.1 on a
// control variable of MPI's tool interface makes it a ring, which moves two parts in `ranks` of it instead.
class AllReduceVariable {
 public:
  AllReduceVariable() {
    int level = 0, index = 0, count = 0, value = kTree;
    usable_ = MPI_T_init_thread(MPI_THREAD_SERIALIZED, &level) == MPI_SUCCESS &&
        MPI_T_cvar_get_index("coll_libnbc_iallreduce_algorithm", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, nullptr, &handle_, &count) == MPI_SUCCESS &&
        MPI_T_cvar_read(handle_, &value) == MPI_SUCCESS && value == kTree;  // else the user has chosen
  }
  void set(int value) {
    if (usable_ && value != value_)
      usable_ = MPI_T_cvar_write(handle_, &value) == MPI_SUCCESS;
    value_ = value;
  }

  static constexpr int kTree = 0, kRing = 1;

 private:
  MPI_T_cvar_handle handle_ = nullptr;
  bool usable_ = false;
  int value_ = kTree;
};

// Of what is sent at once in a ring; below, a tree's fewer steps are faster.
constexpr int64_t kRingPart = 2048;

}  // namespace

void choose_all_reduce(int64_t bytes, int ranks) {
  static AllReduceVariable variable;
  variable.set(bytes >= kRingPart * ranks ? AllReduceVariable::kRing : AllReduceVariable::kTree);
}
#else
void choose_all_reduce(int64_t, int) {}
#endif

void free_reductions() {
  for (auto& entry : custom_reductions) {
    MPI_Op_free(&entry.second.op);
    MPI_Type_free(&entry.second.type);
  }
  custom_reductions.clear();
}

}  // namespace torch_mpi
