#include "trireme/parallel/tensor/internal/boxes.h"

namespace trireme::parallel {

std::vector<model::ParameterBox> boxes_of(const std::string& name, const at::Tensor& parameter,
                                          std::int64_t dim, const DimCut& cut, const comm::Group& group) {
  const auto along = static_cast<std::size_t>(dim);
  std::vector<model::ParameterBox> boxes;
  std::int64_t place = 0;
  for (const Range& range : cut.ranges(group.rank(), group.size())) {
    model::ParameterBox box = model::whole_box(name, parameter);
    box.global_sizes[along] = cut.size;
    box.offsets[along] = range.begin;
    box.sizes[along] = range.size;
    box.places[along] = place;
    box.is_part = true;
    place += range.size;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace trireme::parallel
