// Offloaded state in host memory has the same bits as on the device, whenever it is read.
#include "trireme/optim/offload.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/support/stand_in_device.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

NamedTensors parameters() {
  at::manual_seed(1);
  NamedTensors made;
  for (const char* name : {"one", "two", "three"})
    made.emplace_back(name, at::randn({37, 41}).to(test::kStandInDevice).set_requires_grad(true));
  return made;
}

void set_gradients(const NamedTensors& parameters, int step) {
  at::manual_seed(100 + static_cast<std::uint64_t>(step));
  for (const auto& [name, parameter] : parameters)
    parameter.mutable_grad() = at::randn({37, 41}).to(test::kStandInDevice);
}

TEST(OffloadToHost, HasBitsOfDeviceAfterStep) {
  for (const std::int64_t part_bytes : {1, 1 << 20}) {
    const std::int64_t copies_before = test::copies_on_own_streams_of_stand_in();
    const NamedTensors expected = parameters(), found = parameters();
    const auto offload = std::make_shared<Offload>(
        Offload::Options{.folder = {},
                         .owner = "rank 0",
                         .part_bytes = part_bytes,
                         .device = c10::Device(std::string(test::kStandInDevice) + ":0"),
                         .state = OffloadPlace::kHost});
    const auto on_device = make_optimizer({.name = "adamw", .lr = 0.1, .weight_decay = 0}, expected),
               in_host = make_optimizer({.name = "adamw", .lr = 0.1, .weight_decay = 0}, found, offload);
    for (int step = 0; step < 3; ++step) {
      set_gradients(expected, step);
      set_gradients(found, step);
      on_device->step();
      in_host->step();
      // No earlier operation has waited for the device.
      std::map<std::string, at::Tensor> fetched;
      for (const auto& [name, tensor] : in_host->state()) {
        if (offload->has(tensor)) fetched[name] = offload->fetch(tensor);
      }
      EXPECT_EQ(fetched.size(), 6u);
      EXPECT_GT(test::copies_on_own_streams_of_stand_in(), copies_before) << "none while the device computes";
      for (const auto& [name, tensor] : fetched)
        EXPECT_TRUE(tensor.equal(on_device->state().at(name).cpu())) << name << ", " << step;
    }
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(expected[i].second.detach().cpu().equal(found[i].second.detach().cpu()));
    // The next step uses the value that was put.
    const at::Tensor state = in_host->state().at("exp_avg/one");
    offload->put(state, at::zeros({37, 41}));
    EXPECT_EQ(offload->fetch(state).abs().max().item<float>(), 0);
  }
}

}  // namespace
}  // namespace trireme::optim
