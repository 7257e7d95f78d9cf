#pragma once
// Graphs of the mock device for code that creates them through comm/device_graph.h.

#include <atomic>
#include <cstdint>
#include <memory>

#include "tests/support/stand_in_device.h"
#include "tests/support/stand_in_graph.h"
#include "trireme/comm/device_graph.h"

namespace trireme::test {

class StandInDeviceGraph final : public comm::DeviceGraph {
 public:
  void begin() override { graph_->begin(); }
  void end() override { graph_->end(); }
  void replay() override {
    ++num_replays;
    graph_->replay();
  }
  inline static std::atomic<std::int64_t> num_replays = 0;  ///< in this process

 private:
  const std::unique_ptr<StandInGraph> graph_ = make_stand_in_graph();
};

inline void register_stand_in_graphs() {
  comm::register_device_graphs(c10::DeviceType::PrivateUse1,
                               [](c10::Device) -> std::unique_ptr<comm::DeviceGraph> {
                                 return std::make_unique<StandInDeviceGraph>();
                               });
}

}  // namespace trireme::test
