#pragma once
// A mesh as a value: ranks arranged as a grid with named axes, slowest first. {{"dp", 2}, {"pp", 3}} puts
// rank = dp * 3 + pp. Everything that follows from a rank's place is asked here: coordinates, sub-groups
// along one axis or several (a fold, as data and context parallel ranks together hold copies of the weights).
// Pure; thread-safe.

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// A named direction in the grid, and the number of ranks along it.
struct MeshAxis {
  std::string name;  ///< "dp", "pp", "tp"
  int size = 1;
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

class MeshShape {
 public:
  /// Names of axes that are taken together; axes that the mesh does not have count as of size 1.
  using Fold = std::vector<std::string>;

  /// Throws InvalidArgument: an axis without a name, of a size below 1, or twice.
  explicit MeshShape(std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// Of all axes, in their order.
  Fold names() const;
  /// The product of all sizes.
  int num_ranks() const;
  /// Whether it was made with an axis of that name, of any size.
  bool has(std::string_view axis) const;
  /// 1 for an axis that the mesh does not have.
  int size(std::string_view axis) const;
  /// The product over the fold.
  int size(const Fold& fold) const;
  /// A rank's place on the axis; 0 for an axis that the mesh does not have.
  int coordinate(int rank, std::string_view axis) const;
  /// A rank's number among those that differ from it in the axes of the fold only, in rising order of ranks.
  int place(int rank, const Fold& fold) const;
  /// The rank at these coordinates, in the order of axes(). Throws InvalidArgument.
  int rank_at(const std::vector<int>& coordinates) const;
  /// All groups of ranks that differ in the axes of the fold only, each in rising order, by first rank.
  std::vector<std::vector<int>> groups(const Fold& fold) const;
  /// The mesh of those axes alone, in their order here.
  MeshShape only(const Fold& fold) const;
  /// The mesh with two axes in place of one: `inner_size` neighbours along it are the inner one. Throws
  /// InvalidArgument: no such axis, or a size that does not divide its.
  MeshShape split(std::string_view axis, const std::string& outer, const std::string& inner,
                  int inner_size) const;
  /// The mesh with one axis that replaces its axes in the fold; without such axes, the same mesh. Throws
  /// InvalidArgument: other axes are between them.
  MeshShape merge(const Fold& fold, const std::string& name) const;
  /// "dp=2 x pp=3"
  std::string describe() const;

  friend bool operator==(const MeshShape&, const MeshShape&) = default;

 private:
  int stride(std::size_t axis) const;

  std::vector<MeshAxis> axes_;
};

}  // namespace trireme
