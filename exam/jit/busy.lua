-- Loops, strings and errors, which LuaJIT compiles by traces.
local function work(seed, rounds)
  local map, sum = {}, seed
  for i = 0, rounds do
    map[i % 97] = 'v' .. (i * seed)
    sum = (sum * 31 + 7 + #map[i % 97]) % 1000003
    if i % 50 == 0 then
      local is_odd = pcall(function() if sum % 2 == 0 then error('even') end end)
      if is_odd then sum = sum + 1 end
    end
  end
  return sum
end

local sum = 0
for seed = 1, 40 do sum = sum + work(seed, 3000) end
print(sum)
