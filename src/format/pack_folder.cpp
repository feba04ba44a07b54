// The folder a result is built in, and how it takes the place of the old one.
#include "format/pack_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "format/pack_journal.h"

namespace millrace::format {
namespace fs = std::filesystem;

std::string weights_name(uint32_t file) { return fmt::format("weights-{:05}.bin", file + 1); }

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  return std::ranges::none_of(name, [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 32 || c == 127;
  });
}

bool is_reserved_name(std::string_view name) {
  return name == kManifestName || name == kSourceBinName || name == kJournalName ||
         (name.starts_with("weights-") && name.ends_with(".bin"));
}

std::string trimmed_path(std::string path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (!error) path = absolute.string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string parent_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

namespace {

bool same_folder(int fd, const std::string& path) {
  struct stat open_one = {}, named = {};
  return ::fstat(fd, &open_one) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

Expected<std::vector<std::string>> entries_of(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(path, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return fail(Code::kIo, "{}: {}", path, error.message());
  std::ranges::sort(names);
  return names;
}

// What says whose folder it is goes last, so that a kill in between leaves one that is known as
// ours.
Status remove_files(const std::string& path) {
  MILLRACE_ASSIGN(auto names, entries_of(path));
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) {
    return name != kManifestName && name != kJournalName;
  });
  for (const std::string& name : names) {
    const std::string file = path + "/" + name;
    if (::unlink(file.c_str()) != 0 && errno != ENOENT) return io_error(file, "remove", errno);
  }
  return {};
}

Expected<Fd> lock_folder(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.open()) return io_error(path, "open folder", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK) {
    return fail(Code::kIo, "{}: another process is writing it (the folder is locked)", path);
  }
  // Network file systems may not lock folders; there the user has to take care.
  if (errno == EBADF || errno == ENOLCK || errno == EOPNOTSUPP || errno == EINVAL) return fd;
  return io_error(path, "lock", errno);
}

}  // namespace

Expected<BuildFolder> BuildFolder::lock(const std::string& out, std::string_view suffix) {
  BuildFolder folder;
  folder.path_ = out + std::string(suffix);
  // A finishing writer may rename the folder between our open and our lock: then try again.
  for (int attempt = 0; attempt < 16; ++attempt) {
    if (::mkdir(folder.path_.c_str(), 0755) != 0 && errno != EEXIST) {
      return io_error(folder.path_, "create folder", errno);
    }
    auto fd = lock_folder(folder.path_);
    if (!fd && fd.error().code == Code::kNotFound) continue;
    if (!fd) return tl::make_unexpected(std::move(fd.error()));
    if (!same_folder(fd->get(), folder.path_)) continue;
    folder.lock_ = std::move(*fd);
    return folder;
  }
  return fail(Code::kIo, "{}: keeps being replaced by another process", folder.path_);
}

Expected<std::vector<std::string>> BuildFolder::entries() const { return entries_of(path_); }
Status BuildFolder::clear() const { return remove_files(path_); }
void BuildFolder::discard() const {
  if (clear()) static_cast<void>(::rmdir(path_.c_str()));
}

Status BuildFolder::publish(const std::string& out, bool replace,
                            const std::function<bool(std::string_view)>& is_ours) {
  MILLRACE_TRY(sync_folder(path_));
  if (!replace) {
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, out.c_str(), RENAME_NOREPLACE) != 0) {
      // Where the file system lacks the flag: plain rename refuses a folder that is not empty.
      const bool lacks = errno == EINVAL || errno == ENOSYS;
      if (!lacks || ::rename(path_.c_str(), out.c_str()) != 0) {
        return io_error(out, "rename into place", errno);
      }
    }
    return sync_folder(parent_folder(out));
  }
  // Held until the old folder is gone, so that nobody starts to build in it under its new name.
  MILLRACE_ASSIGN(const Fd old_lock, lock_folder(out));
  MILLRACE_TRY(check_out(out, true, is_ours));
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, out.c_str(), RENAME_EXCHANGE) == 0) {
    MILLRACE_TRY(sync_folder(parent_folder(out)));
    MILLRACE_TRY(remove_files(path_));
    if (::rmdir(path_.c_str()) != 0) return io_error(path_, "remove folder", errno);
    return {};
  }
  if (errno != EINVAL && errno != ENOSYS) return io_error(out, "exchange", errno);
  // Without the exchange: the old folder stays whole under another name until the new one is there.
  const std::string aside = out + ".old";
  if (::rename(out.c_str(), aside.c_str()) != 0) return io_error(out, "move aside", errno);
  if (::rename(path_.c_str(), out.c_str()) != 0) {
    const int error = errno;
    if (::rename(aside.c_str(), out.c_str()) != 0) {
      return io_error(aside, "the old folder is kept here; rename", error);
    }
    return io_error(out, "rename into place", error);
  }
  MILLRACE_TRY(sync_folder(parent_folder(out)));
  MILLRACE_TRY(remove_files(aside));
  if (::rmdir(aside.c_str()) != 0) return io_error(aside, "remove folder", errno);
  return {};
}

Expected<OutState> check_out(const std::string& out, bool overwrite,
                             const std::function<bool(std::string_view)>& is_ours) {
  struct stat status = {};
  if (::lstat(out.c_str(), &status) != 0) {
    if (errno == ENOENT) return OutState::kFree;
    return io_error(out, "stat", errno);
  }
  if (!S_ISDIR(status.st_mode)) {
    return fail(Code::kInvalid, "{}: exists and is not a folder", out);
  }
  MILLRACE_ASSIGN(const auto names, entries_of(out));
  for (const std::string& name : names) {
    if (!is_ours(name)) {
      return fail(Code::kInvalid,
                  "{}: exists and holds '{}', which is none of ours; choose "
                  "another folder",
                  out, name);
    }
  }
  if (!overwrite && !names.empty()) {
    return fail(Code::kInvalid, "{}: exists already; ask for overwriting to replace it", out);
  }
  return OutState::kReplace;
}

}  // namespace millrace::format
