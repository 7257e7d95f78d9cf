#pragma once
// The part of gloo's Context that c10d's public header calls; libtorch exports it but
// ships no header for it. Only ever seen through a pointer that libtorch made. See docs/adr.

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
