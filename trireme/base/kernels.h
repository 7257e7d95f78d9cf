#pragma once
// Loops over arrays that are compiled for several instruction sets from one body, chosen once by the
// processor's features. A body without expressions that a compiler could contract into a fused multiply-add
// gives the same bits with each. Functions without state.

#define TRIREME_INLINE inline __attribute__((always_inline))
/// For lambdas: [&]() TRIREME_INLINE_BODY { ... }
#define TRIREME_INLINE_BODY __attribute__((always_inline))
// Of the next loop: no iteration reads the writes of another, so it may be vectorized.
#ifdef __clang__
#define TRIREME_NO_CARRIED_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#else
#define TRIREME_NO_CARRIED_DEPENDENCE _Pragma("GCC ivdep")
#endif

namespace trireme {

enum class InstructionSet { kPlain, kAvx2, kAvx512 };

/// Instruction set of this processor, queried once per process. kAvx512 means AVX-512 F, BW, VL and DQ.
inline InstructionSet instruction_set() {
  static const InstructionSet kFound = [] {
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
      return InstructionSet::kAvx512;
    return __builtin_cpu_supports("avx2") ? InstructionSet::kAvx2 : InstructionSet::kPlain;
  }();
  return kFound;
}

namespace kernels {

/// Runs `body` compiled for one instruction set each. One that the processor does not have ends the process
/// with SIGILL: run_vectorised() chooses.
template <class Body>
void plain(const Body& body) {
  body();
}
template <class Body>
__attribute__((target("avx2"))) void avx2(const Body& body) {
  body();
}
template <class Body>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void avx512(const Body& body) {
  body();
}

}  // namespace kernels

/// Runs `body`, a lambda with TRIREME_INLINE_BODY whose every call is inlined, too.
template <class Body>
void run_vectorised(const Body& body) {
  switch (instruction_set()) {
    case InstructionSet::kAvx512:
      return kernels::avx512(body);
    case InstructionSet::kAvx2:
      return kernels::avx2(body);
    case InstructionSet::kPlain:
      return kernels::plain(body);
  }
}

}  // namespace trireme
