#include "trireme/comm/mesh.h"

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

void check_world(const MeshShape& shape, const Context& context) {
  require(shape.num_ranks() == context.world_size(), "mesh ", shape.describe(), " needs ", shape.num_ranks(),
          " ranks, but the world has ", context.world_size(),
          ": the product of the sizes has to be the number of ranks");
}

}  // namespace

/// Creating a group is collective: every rank creates all groups in the same order.
Group make_new_group(Context& context, const MeshShape& shape, const MeshShape::Fold& fold) {
  check_world(shape, context);
  std::optional<Group> own;
  for (const std::vector<int>& ranks : shape.groups(fold)) {
    const std::string name = text(join(fold, " x "), "@", ranks.front());
    auto group = context.new_group(ranks, context.free_group_name(name));
    if (group) own = std::move(group);
  }
  return *own;
}

Group make_group(Context& context, const MeshShape& shape, const MeshShape::Fold& fold) {
  check_world(shape, context);
  const int size = shape.size(fold);
  if (size == 1) return context.self();
  return size == context.world_size() ? context.world() : make_new_group(context, shape, fold);
}

Mesh::Mesh(Context& context, std::vector<MeshAxis> axes) : shape_(std::move(axes)), rank_(context.rank()) {
  check_world(shape_, context);
  for (const MeshAxis& axis : shape_.axes())
    groups_.emplace(axis.name, make_new_group(context, shape_, {axis.name}));
}

Group& Mesh::group(const std::string& axis) {
  const auto found = groups_.find(axis);
  if (found != groups_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& each : axes()) known.push_back(each.name);
  throw InvalidArgument(
      text("the mesh ", shape_.describe(), " has no axis '", axis, "'", suggest(axis, known)));
}

}  // namespace trireme::comm
