#pragma once
// While an object exists, a resource of the process is limited, as far as the hard limit allows. One object
// at a time.

#include <sys/resource.h>

#include <algorithm>

namespace trireme::test {

class ResourceLimit {
 public:
  /// `resource`: RLIMIT_NOFILE, RLIMIT_FSIZE and so on.
  ResourceLimit(__rlimit_resource_t resource, rlim_t most) : resource_(resource) {
    ::getrlimit(resource, &before_);
    limit_ = {.rlim_cur = std::min(most, before_.rlim_max), .rlim_max = before_.rlim_max};
    ::setrlimit(resource, &limit_);
  }
  ~ResourceLimit() { ::setrlimit(resource_, &before_); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;
  rlim_t most() const { return limit_.rlim_cur; }

 private:
  const __rlimit_resource_t resource_;
  rlimit before_{}, limit_{};
};

}  // namespace trireme::test
