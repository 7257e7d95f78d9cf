#pragma once
// A Mesh arranges the ranks of a world as a grid with named axes, slowest first: {{"dp", 2}, {"pp", 3}} puts
// rank = dp * 3 + pp. Along each axis a rank has a group of the ranks that differ from it in that axis only.
// Collective to make; afterwards immutable.

#include <map>
#include <string>
#include <vector>

#include "trireme/comm/context.h"

namespace trireme::comm {

/// A named direction in the grid, and how many ranks lie along it.
struct MeshAxis {
  std::string name;  ///< "dp", "pp", "tp"
  int size = 1;
};

class Mesh {
 public:
  /// The product of the sizes has to be the world size; names are unique. Throws InvalidArgument.
  Mesh(Context& context, std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// Whether the mesh was made with an axis of that name, of whatever size.
  bool has(const std::string& axis) const;
  /// Size of the axis; 1 for an axis that the mesh does not have.
  int size(const std::string& axis) const;
  /// This rank's place on the axis.
  int coordinate(const std::string& axis) const;
  /// The group along the axis. Throws InvalidArgument with the nearest axis name.
  Group& group(const std::string& axis);
  /// World rank at the given coordinates, in the order of axes().
  int rank_at(const std::vector<int>& coordinates) const;

 private:
  std::vector<MeshAxis> axes_;
  std::vector<int> coordinates_;
  std::map<std::string, Group> groups_;
};

}  // namespace trireme::comm
