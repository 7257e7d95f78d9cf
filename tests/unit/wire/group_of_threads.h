#pragma once
// A wire::LocalGroup whose ranks are threads of the test. All of its memory is in one process, so that
// ThreadSanitizer sees every access.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/wire/local_group.h"

namespace trireme::wire {

constexpr double kTimeout_s = 20;  // generous: a test that reaches it has failed

/// Whether ranks read each other's tensors by address, or like processes through segments and staging.
enum class Tensors { kAddressed, kAsProcesses };

/// Runs `body` as each rank of a group. Returns the exception text of each rank ("" for none).
inline std::vector<std::string> run_ranks(int size, const std::function<void(LocalGroup&, int)>& body,
                                          Tensors tensors = Tensors::kAddressed) {
  const auto memory = SharedMemory::create_in_process(ControlBlock::bytes(BlockLayout::for_size(size)));
  for (int r = 0; r < size; ++r) LocalGroup::enter(*memory, r, size);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      LocalGroup group(memory, Membership{.rank = r,
                                          .size = size,
                                          .rank_names = {},
                                          .ranks_on_cores = size,

                                          .threads_of_one_process = tensors == Tensors::kAddressed});
      try {
        body(group, r);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

inline std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

template <class T>
Call all_reduce_call(std::vector<T>& values, Element element, Reduction reduction = Reduction::kSum) {
  return Call{.kind = CallKind::kAllReduce,
              .element = element,
              .reduction = reduction,
              .count = values.size(),
              .input = bytes(values.data()),
              .output = bytes(values.data())};
}

}  // namespace trireme::wire
