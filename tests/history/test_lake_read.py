def test_a_table_that_is_not_there_yet_is_empty(lake):
    assert not lake.exists("broker_load")
    assert lake.table("broker_load").count() == 0
