#pragma once
// What `trireme topology` says, as text, JSON and a figure. Functions of what was measured.

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "cli/topology/host_hardware.h"
#include "trireme/base/mesh_shape.h"
#include "trireme/topology/link_table.h"

namespace trireme::cli {

struct TopologyReport {
  topology::LinkTable table;
  std::vector<HostHardware> hosts;  ///< by the table's numbers
  double sum_bytes_per_s = 0;       ///< that a rank adds up
  double probe_s = 0;               ///< that the probe took
};

/// Also what read_topology() reads.
std::string to_json(const TopologyReport& report);
/// Throws DataError: `source` is no such JSON, or one of numbers that cannot be.
TopologyReport parse_topology(const std::string& json, const std::string& source);
/// The same of a file or a pipe, of at most 128 MiB. Throws DataError.
TopologyReport read_topology(const std::filesystem::path& file);

void print_topology(std::ostream& out, const TopologyReport& report);

/// Hosts (or the ranks of one host) on a circle, with a line for each link. Stands by itself: no script, font
/// or link from outside; valid XML.
std::string to_svg(const TopologyReport& report);

/// "1 KB,64 KiB,25 MB" in bytes. Throws InvalidArgument with the word that is no size.
std::vector<double> parse_sizes(const std::string& words);

/// What each algorithm would take for an all-reduce of these sizes.
void print_choices(std::ostream& out, const TopologyReport& report, const std::vector<double>& sizes);
std::string choices_to_json(const TopologyReport& report, const std::vector<double>& sizes);

/// The slowest link along each axis of a mesh (trireme/base/mesh_axes.h) of the report's ranks.
void print_axes(std::ostream& out, const TopologyReport& report, const MeshShape& mesh);
std::string axes_to_json(const TopologyReport& report, const MeshShape& mesh);

/// Three digits that count: "1.25 ms", "118 MB/s".
std::string seconds_text(double seconds);
std::string rate_text(double bytes_per_s);

}  // namespace trireme::cli
