#pragma once
// Recognizes libtorch's errors for lack of memory, which differ from others in their text only. Pure.

#include <string>
#include <string_view>

namespace trireme {

/// "out of memory: you tried to allocate 67108864 bytes, ..." for a message of libtorch's allocator; empty
/// for any other.
inline std::string out_of_memory_in(std::string_view message) {
  constexpr std::string_view kMark = "can't allocate memory: ";
  const std::size_t at = message.find(kMark);
  if (at == std::string_view::npos) return "";
  const std::string_view asked = message.substr(at + kMark.size());
  return "out of memory: " + std::string(asked.substr(0, asked.find('.'))) +
         "; make micro-batches smaller (train.accumulation, parallel.microbatches), cut the model into more "
         "stages (parallel.pipeline), or start fewer ranks on this machine";
}

}  // namespace trireme
