#pragma once
// The groups of a mesh (base/mesh_shape.h): along each axis a rank has a group of the ranks that differ from
// it in that axis only. Collective to make; afterwards immutable.

#include <map>
#include <string>
#include <vector>

#include "trireme/base/mesh_shape.h"
#include "trireme/comm/context.h"

namespace trireme::comm {

using trireme::MeshAxis;

/// A new group of the ranks that differ from this one in the axes of the fold only. Throws InvalidArgument: a
/// mesh of another number of ranks. Collective over the world.
Group make_new_group(Context& context, const MeshShape& shape, const MeshShape::Fold& fold);
/// The same; for one rank Context::self(), and for all of them Context::world().
Group make_group(Context& context, const MeshShape& shape, const MeshShape::Fold& fold);

class Mesh {
 public:
  /// The product of the sizes has to be the world size; names are unique. Throws InvalidArgument.
  Mesh(Context& context, std::vector<MeshAxis> axes);

  const MeshShape& shape() const { return shape_; }
  const std::vector<MeshAxis>& axes() const { return shape_.axes(); }
  /// Whether the mesh was made with an axis of that name, of any size.
  bool has(const std::string& axis) const { return shape_.has(axis); }
  /// Size of the axis; 1 for an axis that the mesh does not have.
  int size(const std::string& axis) const { return shape_.size(axis); }
  /// This rank's place on the axis.
  int coordinate(const std::string& axis) const { return shape_.coordinate(rank_, axis); }
  /// The group along the axis. Throws InvalidArgument with the nearest axis name.
  Group& group(const std::string& axis);
  /// World rank at the given coordinates, in the order of axes().
  int rank_at(const std::vector<int>& coordinates) const { return shape_.rank_at(coordinates); }

 private:
  MeshShape shape_;
  int rank_;
  std::map<std::string, Group> groups_;
};

}  // namespace trireme::comm
