#include "trireme/parallel/tensor/internal/boxes.h"

namespace trireme::parallel {

std::vector<model::ParameterBox> boxes_of(const std::string& name, const at::Tensor& parameter,
                                          const std::vector<std::int64_t>& global_sizes, std::int64_t dim,
                                          const DimCut& cut, const comm::Group& group) {
  const auto along = static_cast<std::size_t>(dim);
  const std::vector<std::int64_t> zeros(global_sizes.size(), 0);
  std::vector<model::ParameterBox> boxes;
  std::int64_t place = 0;
  for (const Range& range : cut.ranges(group.rank(), group.size())) {
    model::ParameterBox box{.name = name,
                            .global_sizes = global_sizes,
                            .offsets = zeros,
                            .sizes = global_sizes,
                            .parameter = parameter,
                            .places = zeros,
                            .is_part = true};
    box.offsets[along] = range.begin;
    box.sizes[along] = range.size;
    box.places[along] = place;
    place += range.size;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace trireme::parallel
