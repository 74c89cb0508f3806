// What differs between the PyTorch versions, in one place (2.1 to 2.15 were compiled).
//
// Most of it needs no #if: a virtual function that only newer versions have is declared without `override` in
// backend.h, so it overrides where the base class knows it and is an ordinary function elsewhere.
#pragma once

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/hash.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#define TORCH_MPI_TORCH_IS_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace torch_mpi {

// Was the call made with async_op=True? The options carry it from 2.4 on for some collectives, from 2.8 on for all;
// where they do not, any call might be.
template <class Options>
auto asked_async(const Options& options, int) -> decltype(bool(options.asyncOp)) {
  return options.asyncOp;
}
template <class Options>
bool asked_async(const Options&, long) {
  return true;
}

}  // namespace torch_mpi
