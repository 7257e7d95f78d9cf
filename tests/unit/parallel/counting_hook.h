#pragma once
// Counts the buckets in flight.

#include <memory>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::test {

/// All-reduces and counts.
class CountingHook : public parallel::CommHook {
 public:
  std::function<void()> start(comm::Group& group, parallel::GradientBucket& bucket,
                              parallel::ReduceScale scale) override {
    ++started;
    return [this, wait = plain_->start(group, bucket, scale)] {
      wait();
      ++waited;
    };
  }
  int started = 0, waited = 0;

 private:
  const std::shared_ptr<parallel::CommHook> plain_ = parallel::make_comm_hook("none");
};

}  // namespace trireme::test
