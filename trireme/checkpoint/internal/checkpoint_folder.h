#pragma once
// The folder of a run's checkpoints: names, and how checkpoints come into it, are replaced, moved aside and
// removed. One writer at a time, the first of those who write a checkpoint together. Stateless.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::checkpoint {

/// "step-00000120".
std::string name_of(std::int64_t step);
/// The step in a folder's name; empty when it is not the name of a checkpoint.
std::optional<std::int64_t> step_of(const std::filesystem::path& folder);
/// Where the parts of a checkpoint are written: FOLDER/.writing-step-00000120.ATTEMPT.
std::filesystem::path temporary_of(const std::filesystem::path& folder, std::int64_t step,
                                   const std::string& attempt);
/// Removes what earlier writers of ours left: temporary folders of other attempts than those that begin with
/// `prefix`.
void remove_leftovers(const std::filesystem::path& folder, const std::string& prefix);
/// Whether a checkpoint stands at `place`, to be replaced. A damaged one is moved aside. Throws DataError
/// where something stands that is not ours, or not known to be.
bool holds_checkpoint(const std::filesystem::path& place);
/// Renames a damaged checkpoint to NAME.damaged-1, or the next free number, so that it is never taken for one
/// and never removed. Returns the new path.
std::filesystem::path move_aside(const std::filesystem::path& checkpoint);
/// Renames `from` to `to`. A checkpoint that stands there already changes places with it in one step, where
/// the file system can do that, and is removed afterwards.
void put_in_place(const std::filesystem::path& from, const std::filesystem::path& to);
/// Removes all but the newest `keep` (0: none of them) and, whatever `keep` says, those of later steps than
/// the one just saved: they were made by a run that has since gone back after them, and would count as the
/// newest.
void remove_outdated(const std::filesystem::path& folder, std::int64_t saved_step, int keep);

}  // namespace trireme::checkpoint
