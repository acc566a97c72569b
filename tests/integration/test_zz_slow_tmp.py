import time, psycopg, pytest, os


@pytest.mark.parametrize("n", range(2))
def test_it(postgres, n):
    open(f"/tmp/hf-slow-{n}", "w").write(f"{postgres.pid} {postgres.folder} {os.getpid()}")
    time.sleep(60)
