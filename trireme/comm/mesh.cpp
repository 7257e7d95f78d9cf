#include "trireme/comm/mesh.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

std::string describe(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> parts;
  for (const auto& axis : axes) parts.push_back(text(axis.name, "=", axis.size));
  return join(parts, " x ");
}

void check_axes(const std::vector<MeshAxis>& axes, int world_size) {
  std::int64_t product = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    require(!axes[i].name.empty() && axes[i].size >= 1, "mesh ", describe(axes),
            ": every axis needs a name and a size of at least 1");
    for (std::size_t j = 0; j < i; ++j) {
      require(axes[i].name != axes[j].name, "mesh ", describe(axes), ": the axis '", axes[i].name,
              "' is there twice");
    }
    product *= axes[i].size;
  }
  require(product == world_size, "mesh ", describe(axes), " needs ", product, " ranks, but the world has ",
          world_size, ": the product of the sizes has to be the number of ranks");
}

/// How far apart neighbours on the axis are in rank.
int stride_of(const std::vector<MeshAxis>& axes, std::size_t axis) {
  int stride = 1;
  for (std::size_t i = axis + 1; i < axes.size(); ++i) stride *= axes[i].size;
  return stride;
}

}  // namespace

Mesh::Mesh(Context& context, std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  const int world_size = context.world_size();
  check_axes(axes_, world_size);
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const int stride = stride_of(axes_, i);
    coordinates_.push_back(context.rank() / stride % axes_[i].size);
    // Every rank takes part in making every group, in the same order.
    for (int first = 0; first < world_size; ++first) {
      if (first / stride % axes_[i].size != 0) continue;
      std::vector<int> members;
      for (int k = 0; k < axes_[i].size; ++k) members.push_back(first + k * stride);
      auto group = context.new_group(members, context.free_group_name(text(axes_[i].name, "@", first)));
      if (group) groups_.emplace(axes_[i].name, std::move(*group));
    }
  }
}

bool Mesh::has(const std::string& axis) const { return groups_.contains(axis); }

int Mesh::size(const std::string& axis) const {
  const auto found = groups_.find(axis);
  return found == groups_.end() ? 1 : found->second.size();
}

int Mesh::coordinate(const std::string& axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return coordinates_[i];
  }
  return 0;
}

Group& Mesh::group(const std::string& axis) {
  const auto found = groups_.find(axis);
  if (found != groups_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& each : axes_) known.push_back(each.name);
  throw InvalidArgument(
      text("the mesh ", describe(axes_), " has no axis '", axis, "'", suggest(axis, known)));
}

int Mesh::rank_at(const std::vector<int>& coordinates) const {
  require(coordinates.size() == axes_.size(), "rank_at: ", coordinates.size(), " coordinates for the mesh ",
          describe(axes_));
  int rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    require(coordinates[i] >= 0 && coordinates[i] < axes_[i].size, "rank_at: coordinate ", coordinates[i],
            " on axis '", axes_[i].name, "' of size ", axes_[i].size);
    rank += coordinates[i] * stride_of(axes_, i);
  }
  return rank;
}

}  // namespace trireme::comm
