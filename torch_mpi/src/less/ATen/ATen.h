// Found in place of PyTorch's own, which its Backend.hpp and Work.hpp include: that declares all two thousand operators,
// and reading them takes half of the time. Here are those that torch_mpi and the headers it includes use.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/sparse_coo_tensor.h>
