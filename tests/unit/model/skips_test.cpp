#include "trireme/model/skips.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

namespace trireme::model {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

at::Tensor number(double value) { return at::full({}, value); }

std::vector<double> values_of(const Tensors& tensors) {
  std::vector<double> values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.item<double>());
  return values;
}

Layer layer(std::string name, std::vector<std::string> takes, std::vector<std::string> gives) {
  Layer layer{.name = std::move(name), .forward = nullptr};
  layer.forward = [](const Tensors& x) { return x; };
  layer.takes = std::move(takes);
  layer.gives = std::move(gives);
  return layer;
}

TEST(Skips, TravelFromGiverToLastTaker) {
  const std::vector<Layer> chain = {layer("a", {}, {"x", "y"}), layer("b", {"y"}, {"z"}),
                                    layer("c", {"x"}, {}), layer("d", {"z", "x"}, {}), layer("e", {}, {})};
  EXPECT_THAT(carried_skips(chain), ElementsAre(IsEmpty(), ElementsAre("x", "y"), ElementsAre("x", "z"),
                                                ElementsAre("x", "z"), IsEmpty(), IsEmpty()));
}

TEST(Skips, FollowTensorsOfLayerInDeclaredOrder) {
  Layer taker = layer("taker", {"z", "x"}, {"new"});
  Tensors got;
  taker.forward = [&](const Tensors& x) {
    got = x;
    return Tensors{number(7), number(8), number(9)};
  };
  const Tensors on =
      run_layer(taker, Tensors{number(1), number(2), number(3), number(4)}, {"x", "y", "z"}, {"y", "new"});
  EXPECT_THAT(values_of(got), ElementsAre(1, 4, 2));
  EXPECT_THAT(values_of(on), ElementsAre(7, 8, 3, 9));
}

TEST(Skips, PassALayerOfOneTensor) {
  const Layer plain{.name = "plain", .forward = [](const at::Tensor& x) { return x + 1; }};
  EXPECT_THAT(values_of(run_layer(plain, Tensors{number(1), number(5)}, {"x"}, {"x"})), ElementsAre(2, 5));
}

}  // namespace
}  // namespace trireme::model
