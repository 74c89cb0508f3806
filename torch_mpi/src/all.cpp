// Compiled as one: nearly all of the time goes into torch's headers, which are read once so.
#include "agreement.cpp"
#include "backend.cpp"
#include "failure.cpp"
#include "memory.cpp"
#include "module.cpp"
#include "reduction.cpp"
#include "runtime.cpp"
#include "work.cpp"
