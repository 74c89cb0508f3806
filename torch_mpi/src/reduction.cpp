#include "reduction.h"

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

bool builtin_type(at::ScalarType type, Builtin* found) {
  switch (type) {
    case at::kByte:
      *found = {MPI_UINT8_T, Kind::integer};
      return true;
    case at::kChar:
      *found = {MPI_INT8_T, Kind::integer};
      return true;
    case at::kShort:
      *found = {MPI_INT16_T, Kind::integer};
      return true;
    case at::kInt:
      *found = {MPI_INT32_T, Kind::integer};
      return true;
    case at::kLong:
      *found = {MPI_INT64_T, Kind::integer};
      return true;
#if TORCH_MPI_HAS_WIDE_UNSIGNED
    case at::kUInt16:
      *found = {MPI_UINT16_T, Kind::integer};
      return true;
    case at::kUInt32:
      *found = {MPI_UINT32_T, Kind::integer};
      return true;
    case at::kUInt64:
      *found = {MPI_UINT64_T, Kind::integer};
      return true;
#endif
    case at::kFloat:
      *found = {MPI_FLOAT, Kind::floating};
      return true;
    case at::kDouble:
      *found = {MPI_DOUBLE, Kind::floating};
      return true;
    case at::kComplexFloat:
      *found = {MPI_C_FLOAT_COMPLEX, Kind::complex};
      return true;
    case at::kComplexDouble:
      *found = {MPI_C_DOUBLE_COMPLEX, Kind::complex};
      return true;
    case at::kBool:
      *found = {MPI_C_BOOL, Kind::boolean};
      return true;
    default:
      return false;
  }
}

// Types MPI does not know: a contiguous type of their size, and operations of our own that compute in float.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<c10::complex<c10::Half>> {
  using type = c10::complex<float>;
};

struct Add {
  template <class W>
  static W apply(W a, W b) {
    return a + b;
  }
};
struct Multiply {
  template <class W>
  static W apply(W a, W b) {
    return a * b;
  }
};
struct Minimum {  // NaN wins, as in torch.minimum
  template <class W>
  static W apply(W a, W b) {
    return a != a || a < b ? a : b;
  }
};
struct Maximum {
  template <class W>
  static W apply(W a, W b) {
    return a != a || a > b ? a : b;
  }
};

template <class T, class Function>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  using W = typename Wide<T>::type;
  const T* from = static_cast<const T*>(in);
  T* into = static_cast<T*>(inout);
  for (int i = 0; i < *count; ++i)
    into[i] = static_cast<T>(Function::apply(static_cast<W>(from[i]), static_cast<W>(into[i])));
}

template <class T>
MPI_User_function* ordered_function(Op op) {
  switch (op) {
    case Op::SUM:
      return combine<T, Add>;
    case Op::PRODUCT:
      return combine<T, Multiply>;
    case Op::MIN:
      return combine<T, Minimum>;
    case Op::MAX:
      return combine<T, Maximum>;
    default:
      return nullptr;
  }
}

MPI_User_function* complex_half_function(Op op) {
  using T = c10::complex<c10::Half>;
  switch (op) {
    case Op::SUM:
      return combine<T, Add>;
    case Op::PRODUCT:
      return combine<T, Multiply>;
    default:
      return nullptr;
  }
}

MPI_User_function* custom_function(at::ScalarType type, Op op, bool* known) {
  *known = true;
  switch (type) {
    case at::kHalf:
      return ordered_function<c10::Half>(op);
    case at::kBFloat16:
      return ordered_function<c10::BFloat16>(op);
    case at::ScalarType::Float8_e4m3fn:
      return ordered_function<c10::Float8_e4m3fn>(op);
    case at::ScalarType::Float8_e5m2:
      return ordered_function<c10::Float8_e5m2>(op);
#if TORCH_MPI_HAS_FLOAT8_FNUZ
    case at::ScalarType::Float8_e4m3fnuz:
      return ordered_function<c10::Float8_e4m3fnuz>(op);
    case at::ScalarType::Float8_e5m2fnuz:
      return ordered_function<c10::Float8_e5m2fnuz>(op);
#endif
    case at::kComplexHalf:
      return complex_half_function(op);
    default:
      *known = false;
      return nullptr;
  }
}

std::map<std::pair<at::ScalarType, Op>, Reduction> custom_reductions;
std::map<at::ScalarType, MPI_Datatype> custom_types;

MPI_Datatype custom_type(at::ScalarType type) {
  auto found = custom_types.find(type);
  if (found != custom_types.end())
    return found->second;
  MPI_Datatype made = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_contiguous(static_cast<int>(c10::elementSize(type)), MPI_BYTE, &made), "MPI_Type_contiguous");
  check_mpi(MPI_Type_commit(&made), "MPI_Type_commit");
  return custom_types[type] = made;
}

}  // namespace

Reduction reduction_for(at::ScalarType type, Op asked) {
  TORCH_CHECK(asked != Op::AVG || type != at::kBool, "torch_mpi: ReduceOp.AVG has no meaning for bool tensors");
  const Op op = base_of(asked);
  Builtin builtin;
  if (builtin_type(type, &builtin)) {
    const MPI_Op found = builtin_op(builtin.kind, op);
    TORCH_CHECK(found != MPI_OP_NULL, "torch_mpi: ReduceOp.", name_of(asked), " has no meaning for ", type, " tensors");
    return {builtin.type, found};
  }
  std::lock_guard<std::mutex> lock(Runtime::get().mutex);
  const auto key = std::make_pair(type, op);
  auto made = custom_reductions.find(key);
  if (made != custom_reductions.end())
    return made->second;
  bool known = false;
  MPI_User_function* function = custom_function(type, op, &known);
  TORCH_CHECK(known, "torch_mpi: cannot reduce ", type, " tensors; it can broadcast, gather and send them");
  TORCH_CHECK(function, "torch_mpi: ReduceOp.", name_of(asked), " has no meaning for ", type, " tensors");
  MPI_Op created = MPI_OP_NULL;
  check_mpi(MPI_Op_create(function, /*commute=*/1, &created), "MPI_Op_create");
  return custom_reductions[key] = {custom_type(type), created};
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
  for (auto& entry : custom_reductions)
    MPI_Op_free(&entry.second.op);
  for (auto& entry : custom_types)
    MPI_Type_free(&entry.second);
  custom_reductions.clear();
  custom_types.clear();
}

}  // namespace torch_mpi
